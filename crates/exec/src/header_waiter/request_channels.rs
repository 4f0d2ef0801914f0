//! The channels by which processes with the preloaded library reach the header waiter: a pair of connected sockets for each
//! [request](peername_identity::WaiterRequest), one end of which the supervisor adds to the process that asks for it.
//!
//! They have no name, so no other process of the host can reach the header waiter. It does not trust a process of the program
//! either: a server that has dropped its privileges may be compromised. What a request is about are the sockets that come with
//! it, and the kernel is asked about these. The library sends its request as soon as it has the socket, and confirms a handoff
//! as soon as it has the connection; so each channel has a deadline, and their number is bounded.

use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use peername_identity::{Settings, WaiterRequest};
use peername_sys::event::epoll::{Epoll, Interest};
use peername_sys::ipc::fd_passing::{
    receive_foreign_fds, send_bytes, seqpacket_pair, shutdown_read,
};
use peername_sys::ipc::foreign_fd::ForeignFd;
use peername_sys::process::stderr::try_write_line;
use peername_sys::socket::upstream::local_addr;
use peername_sys::tcp::foreign_listener::ForeignListener;
use peername_sys::tcp::{socket_info, stream};
use peername_sys::{NameCall, Result, SyscallError};

use super::{HeaderWaiter, ListenerAddr};

/// The header waiter's ends of the open channels.
#[derive(Debug)]
pub struct RequestChannels {
    settings: Settings<'static>,
    epoll: Epoll,
    open: Vec<Channel>,
    /// Files that were sent instead of sockets.
    files: Vec<ForeignFd>,
}

#[derive(Debug)]
struct Channel {
    /// Closing it closes what is queued in it, too.
    socket: ForeignFd,
    /// Deadline for the process's next message: its request, or the confirmation of a handoff.
    deadline: Instant,
    handoff: Option<UnconfirmedHandoff>,
}

/// A connection that was sent to the process, and its listener.
#[derive(Debug)]
struct UnconfirmedHandoff {
    connection: ForeignFd,
    listener: ListenerAddr,
}

impl RequestChannels {
    /// Creates the set, with no channel open.
    pub fn new(settings: Settings<'static>) -> Result<Self> {
        Ok(Self {
            settings,
            epoll: Epoll::new()?,
            open: Vec::new(),
            files: Vec::new(),
        })
    }

    /// Opens a channel, and returns the end for the process that has asked for it. Beyond the limit, ends the one whose deadline
    /// is next.
    ///
    /// # Errors
    ///
    /// EMFILE or ENFILE: there is no descriptor, and no channel that could be ended for it.
    pub(crate) fn open(&mut self, waiter: &mut HeaderWaiter) -> Result<OwnedFd> {
        if self.open.len() >= MAX_OPEN {
            self.end_next(waiter);
        }
        let mut opened = seqpacket_pair();
        // A channel frees one descriptor, and a pair takes two.
        while opened.as_ref().is_err_and(SyscallError::is_exhaustion) && self.end_next(waiter) {
            opened = seqpacket_pair();
        }
        let (ours, theirs) = opened?;
        stream::set_nonblocking(&ours, true).call("ioctl(FIONBIO)")?;
        self.epoll.add(&ours, 0, Interest::Readable)?;
        self.open.push(Channel {
            socket: ours.into(),
            deadline: Instant::now() + TIMEOUT,
            handoff: None,
        });
        Ok(theirs)
    }

    /// When [`RequestChannels::serve`] must be called even if it is not readable.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.open.iter().map(|channel| channel.deadline).min()
    }

    /// Serves processes that have sent something, without waiting, and ends channels whose deadline has passed.
    pub(crate) fn serve(&mut self, waiter: &mut HeaderWaiter) {
        let Self {
            settings,
            open,
            files,
            ..
        } = self;
        let now = Instant::now();
        open.retain_mut(|channel| {
            let goes_on = channel.drive(*settings, files, waiter);
            if goes_on && channel.deadline <= now {
                channel.end(*settings, files, waiter);
                return false;
            }
            goes_on
        });
    }

    /// Ends the channel whose deadline is next. Returns whether there is one.
    fn end_next(&mut self, waiter: &mut HeaderWaiter) -> bool {
        let channels = self.open.iter().enumerate();
        let Some((next, _)) = channels.min_by_key(|(_, channel)| channel.deadline) else {
            return false;
        };
        let mut channel = self.open.remove(next);
        channel.end(self.settings, &mut self.files, waiter);
        true
    }
}

impl AsFd for RequestChannels {
    /// Readable when `RequestChannels::serve` has something to do.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

impl Channel {
    /// Processes what the process has sent, if there is something. Returns whether the channel goes on.
    fn drive(
        &mut self,
        settings: Settings<'_>,
        files: &mut Vec<ForeignFd>,
        waiter: &mut HeaderWaiter,
    ) -> bool {
        if self.handoff.is_some() {
            return self.confirm(waiter);
        }
        let mut bytes = [0; 2];
        let (len, mut fds) = match self.receive(&mut bytes) {
            Ok(received) => received,
            Err(error) => return is_not_yet(&error),
        };
        if !fds.iter().all(socket_info::is_socket) {
            keep_open(files, fds);
            return false;
        }
        match bytes.get(..len).and_then(WaiterRequest::from_bytes) {
            Some(WaiterRequest::Sweep) => waiter.sweep(),
            // The request has woken the supervisor, which then reads the refusals.
            Some(WaiterRequest::Log) | None => {}
            Some(WaiterRequest::Listening) => {
                if let Some(listener) = fds.pop().and_then(ForeignListener::from_fd) {
                    note_listener(waiter, settings, &listener);
                }
            }
            Some(WaiterRequest::Park) => {
                if let Some(listener) = fds.pop().and_then(|fd| covered_listener(settings, fd))
                    && let Some(connection) = fds.pop()
                    && is_accepted_from(&listener, &connection)
                {
                    waiter.park(connection, &listener);
                }
            }
            Some(WaiterRequest::Take) => {
                if let Some(listener) = fds.pop().and_then(|fd| covered_listener(settings, fd)) {
                    return self.hand_over(waiter, (&listener).into());
                }
            }
        }
        false
    }

    fn receive(&self, bytes: &mut [u8]) -> Result<(usize, Vec<ForeignFd>)> {
        receive_foreign_fds(&self.socket, bytes, WaiterRequest::MAX_DESCRIPTORS)
    }

    fn hand_over(&mut self, waiter: &mut HeaderWaiter, listener: ListenerAddr) -> bool {
        let Some(connection) = waiter.take_ready(listener) else {
            let _ = send_bytes(&self.socket, b"-", None);
            return false;
        };
        if send_bytes(&self.socket, b"+", Some(connection.as_fd())).is_err() {
            waiter.return_ready(connection, listener);
            return false;
        }
        self.deadline = Instant::now() + TIMEOUT;
        self.handoff = Some(UnconfirmedHandoff {
            connection,
            listener,
        });
        true
    }

    /// Completes the handoff once the process confirms it. If it closes its end before, the connection is returned.
    fn confirm(&mut self, waiter: &mut HeaderWaiter) -> bool {
        match self.receive(&mut [0; 1]) {
            Ok((1.., _)) => self.handoff = None,
            Err(error) if is_not_yet(&error) => return true,
            _ => {
                if let Some(unconfirmed) = self.handoff.take() {
                    waiter.return_ready(unconfirmed.connection, unconfirmed.listener);
                }
            }
        }
        false
    }

    /// Ends the channel before it is closed: the process can't send any more, so that it closes a connection that it has not
    /// confirmed, and what it has sent until now is processed.
    fn end(
        &mut self,
        settings: Settings<'_>,
        files: &mut Vec<ForeignFd>,
        waiter: &mut HeaderWaiter,
    ) {
        let is_shut = shutdown_read(&self.socket);
        while is_shut.is_ok() && self.drive(settings, files, waiter) {}
    }
}

fn note_listener(waiter: &mut HeaderWaiter, settings: Settings<'_>, listener: &ForeignListener) {
    let port = listener.addr.port();
    waiter.note_port(port);
    if settings.covers(port) {
        waiter.note_listener(listener, listener.into());
    }
}

/// Examines a socket that was sent as a listener. `None` unless it is a TCP listener that expects headers.
fn covered_listener(settings: Settings<'_>, socket: ForeignFd) -> Option<ForeignListener> {
    ForeignListener::from_fd(socket).filter(|listener| settings.covers(listener.addr.port()))
}

/// Whether the socket can be a connection that was accepted from this listener: it has the listener's address, in the same
/// network namespace. In one of its own a process can have any peer.
fn is_accepted_from(listener: &ForeignListener, connection: &ForeignFd) -> bool {
    if socket_info::protocol(connection).is_none() || socket_info::is_listener(connection) {
        return false;
    }
    let at = ListenerAddr::from(listener);
    if socket_info::netns_cookie(connection) != at.namespace {
        return false;
    }
    let Ok(own) = local_addr(connection) else {
        return false;
    };
    own.port() == at.addr.port()
        && (at.addr.ip().is_unspecified() || at.addr.ip().to_canonical() == own.ip().to_canonical())
}

/// Keeps files open that were sent instead of sockets: closing one may wait for a file system that does not answer. A process
/// that does so is broken or compromised.
fn keep_open(files: &mut Vec<ForeignFd>, sent: Vec<ForeignFd>) {
    if files.is_empty() {
        try_write_line(
            "peername: a process of the program has sent a file to the header waiter, which expects a connection: it closes \
             descriptors that it has not opened, or is compromised",
        );
    }
    // Beyond the limit they are closed after all.
    files.extend(sent);
    files.truncate(MAX_FILES);
}

fn is_not_yet(error: &SyscallError) -> bool {
    error.source.kind() == ErrorKind::WouldBlock
}

/// The limit of open channels: the library needs one for some microseconds.
const MAX_OPEN: usize = 128;
/// For a request, and for the confirmation of a handoff: longer than a process of the program is preempted before it.
const TIMEOUT: Duration = Duration::from_secs(1);
/// The limit of files that are kept open.
const MAX_FILES: usize = 64;
