//! The channels by which processes with the preloaded library reach the header waiter: a pair of connected sockets for each
//! [request](peername_identity::WaiterRequest), one end of which the supervisor adds to the process that asks for it.
//!
//! They have no name, so no other process of the host can reach the header waiter. The processes of the program are not
//! trusted either: a server that has dropped its privileges may be compromised. So a request names nothing: it passes the
//! sockets that it is about, and the kernel is queried about these. The library sends its request as soon as it has the
//! channel, and confirms a handoff as soon as it has the connection; so each channel has a deadline, and their number is
//! bounded.

use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use peername_identity::{Counter, WaiterRequest};
use peername_sys::event::epoll::{Epoll, Interest};
use peername_sys::ipc::fd_passing::{
    receive_foreign_fds, send_bytes, seqpacket_pair, shutdown_read,
};
use peername_sys::ipc::foreign_fd::ForeignFd;
use peername_sys::socket::transparent::is_transparent;
use peername_sys::socket::upstream::local_addr;
use peername_sys::tcp::foreign_listener::ForeignListener;
use peername_sys::tcp::{socket_info, stream};
use peername_sys::{NameCall, Result, SyscallError};

use super::header_peek::AdmittedConnection;
use super::{HeaderWaiter, ListenerAddr};
use crate::stderr_line::try_write_line;

/// The header waiter's ends of the open channels.
#[derive(Debug)]
pub(crate) struct RequestChannels {
    epoll: Epoll,
    open: Vec<Channel>,
    /// Files that were sent instead of sockets, see [`keep_open`].
    files: Vec<ForeignFd>,
}

#[derive(Debug)]
struct Channel {
    /// Closing it also closes the descriptors that are queued in it.
    socket: ForeignFd,
    /// Deadline for the process's next message: its request, or the confirmation of a handoff.
    deadline: Instant,
    handoff: Option<UnconfirmedHandoff>,
}

/// A connection that was sent to the process, and its listener.
#[derive(Debug)]
struct UnconfirmedHandoff {
    admitted: AdmittedConnection,
    listener: ListenerAddr,
}

impl RequestChannels {
    /// Creates the set, with no channel open.
    pub(crate) fn new() -> Result<Self> {
        Ok(Self {
            epoll: Epoll::new()?,
            open: Vec::new(),
            files: Vec::new(),
        })
    }

    /// Opens a channel, and returns the end for the process that has asked for it. If too many channels are open, or there is
    /// no descriptor, the channel with the earliest deadline is ended first.
    ///
    /// # Errors
    ///
    /// EMFILE or ENFILE: there is no descriptor, and no channel that could be ended.
    pub(crate) fn open(&mut self, waiter: &mut HeaderWaiter) -> Result<OwnedFd> {
        if self.open.len() >= MAX_OPEN {
            self.end_earliest(waiter);
        }
        let mut opened = seqpacket_pair();
        // More than once, because a channel frees one descriptor, and a pair takes two.
        while opened.as_ref().is_err_and(SyscallError::is_exhaustion) && self.end_earliest(waiter) {
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

    /// When [`RequestChannels::serve`] must be called even if no channel is readable.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.open.iter().map(|channel| channel.deadline).min()
    }

    /// Serves processes that have sent something, without waiting, and ends channels whose deadline has passed.
    pub(crate) fn serve(&mut self, waiter: &mut HeaderWaiter) {
        let Self { open, files, .. } = self;
        let now = Instant::now();
        open.retain_mut(|channel| {
            let stays_open = channel.drive(files, waiter);
            if stays_open && channel.deadline <= now {
                channel.end(files, waiter);
                return false;
            }
            stays_open
        });
    }

    /// Ends the channel with the earliest deadline. Returns whether there is one.
    fn end_earliest(&mut self, waiter: &mut HeaderWaiter) -> bool {
        let channels = self.open.iter().enumerate();
        let Some((earliest, _)) = channels.min_by_key(|(_, channel)| channel.deadline) else {
            return false;
        };
        let mut channel = self.open.remove(earliest);
        channel.end(&mut self.files, waiter);
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
    /// Processes a message of the process, if there is one. Returns whether the channel stays open.
    fn drive(&mut self, files: &mut Vec<ForeignFd>, waiter: &mut HeaderWaiter) -> bool {
        if self.handoff.is_some() {
            return self.confirm(waiter);
        }
        let mut bytes = [0; 2];
        let (len, mut fds) = match self.receive(&mut bytes) {
            Ok(received) => received,
            Err(error) => return is_would_block(&error),
        };
        if !fds.iter().all(socket_info::is_socket) {
            keep_open(files, fds);
            return false;
        }
        match bytes.get(..len).and_then(WaiterRequest::from_bytes) {
            Some(WaiterRequest::Sweep) => waiter.request_sweep(),
            // Nothing is left to do: the supervisor, which this message has woken, reads the refusals after each event.
            Some(WaiterRequest::Log) | None => {}
            Some(WaiterRequest::Listening) => {
                if let Some(listener) = fds.pop().and_then(ForeignListener::from_fd) {
                    note_listener(waiter, &listener);
                }
            }
            Some(WaiterRequest::Park) => {
                let listener = fds.pop().and_then(|fd| covered_listener(waiter, fd));
                let Some(connection) = fds.pop().filter(is_connection) else {
                    return false;
                };
                match listener.filter(|listener| is_accepted_from(listener, &connection)) {
                    Some(listener) => waiter.park(connection, &listener),
                    // A thread has closed the listener since accept(2), and its number may be another file's by now.
                    None => waiter.refuse(connection, Counter::ListenerClosed),
                }
            }
            Some(WaiterRequest::Take) => {
                if let Some(listener) = fds.pop().and_then(|fd| covered_listener(waiter, fd)) {
                    return self.hand_over(waiter, (&listener).into());
                }
            }
        }
        false
    }

    fn receive(&self, bytes: &mut [u8]) -> Result<(usize, Vec<ForeignFd>)> {
        receive_foreign_fds(&self.socket, bytes, WaiterRequest::MAX_DESCRIPTORS)
    }

    /// Sends a ready connection of this listener, if there is one. Returns whether the channel stays open, for the
    /// confirmation.
    fn hand_over(&mut self, waiter: &mut HeaderWaiter, listener: ListenerAddr) -> bool {
        let Some(admitted) = waiter.take_ready(listener) else {
            let _ = send_bytes(&self.socket, b"-", None);
            return false;
        };
        let connection = admitted.connection.as_fd();
        if send_bytes(&self.socket, b"+", Some(connection)).is_err() {
            waiter.return_ready(admitted, listener);
            return false;
        }
        self.deadline = Instant::now() + TIMEOUT;
        self.handoff = Some(UnconfirmedHandoff { admitted, listener });
        true
    }

    /// Completes the handoff if the process has confirmed it. If it has closed its end instead, the connection is returned.
    /// Returns whether the channel stays open.
    fn confirm(&mut self, waiter: &mut HeaderWaiter) -> bool {
        match self.receive(&mut [0; 1]) {
            Ok((1.., _)) => self.handoff = None,
            Err(error) if is_would_block(&error) => return true,
            _ => {
                if let Some(unconfirmed) = self.handoff.take() {
                    waiter.return_ready(unconfirmed.admitted, unconfirmed.listener);
                }
            }
        }
        false
    }

    /// Ends the channel, which the caller then drops. First shuts down reception: if the process has not yet confirmed a
    /// connection, its confirmation fails (EPIPE), and it closes its descriptor of the connection. Then processes the messages
    /// that it sent before, which may be the confirmation.
    fn end(&mut self, files: &mut Vec<ForeignFd>, waiter: &mut HeaderWaiter) {
        let is_shut = shutdown_read(&self.socket);
        while is_shut.is_ok() && self.drive(files, waiter) {}
    }
}

fn note_listener(waiter: &mut HeaderWaiter, listener: &ForeignListener) {
    let port = listener.addr.port();
    waiter.note_port(port);
    if waiter.table.settings().covers(port) {
        waiter.note_listener(listener, listener.into());
    }
}

/// Examines a socket that was sent as a listener. `None` unless it is a TCP listener that expects headers.
fn covered_listener(waiter: &HeaderWaiter, socket: ForeignFd) -> Option<ForeignListener> {
    let settings = waiter.table.settings();
    ForeignListener::from_fd(socket).filter(|listener| settings.covers(listener.addr.port()))
}

fn is_connection(socket: &ForeignFd) -> bool {
    socket_info::protocol(socket).is_some() && !socket_info::is_listener(socket)
}

/// Whether the connection can have been accepted from this listener: it has the listener's address, or any if TPROXY may have
/// delivered it, in the same network namespace. In a namespace of its own a process could have any peer.
fn is_accepted_from(listener: &ForeignListener, connection: &ForeignFd) -> bool {
    let at = ListenerAddr::from(listener);
    if socket_info::netns_cookie(connection) != at.namespace {
        return false;
    }
    let Ok(local) = local_addr(connection) else {
        return false;
    };
    let (local_ip, listener_ip) = (local.ip().to_canonical(), at.addr.ip().to_canonical());
    let is_listeners =
        local.port() == at.addr.port() && (listener_ip.is_unspecified() || listener_ip == local_ip);
    is_listeners || is_transparent(listener).unwrap_or(false)
}

/// Keeps files open that were sent instead of sockets: closing a file may wait for a file system that does not answer. A
/// process that sends files is broken or compromised.
fn keep_open(files: &mut Vec<ForeignFd>, sent: Vec<ForeignFd>) {
    if files.is_empty() {
        try_write_line(
            "peername: a process of the program has sent a file to the header waiter, which expects a connection: it closes \
             descriptors that it has not opened, or is compromised",
        );
    }
    // Files beyond the limit are closed after all.
    files.extend(sent);
    files.truncate(MAX_FILES);
}

fn is_would_block(error: &SyscallError) -> bool {
    error.source.kind() == ErrorKind::WouldBlock
}

/// The limit of open channels. The library needs one for some microseconds.
const MAX_OPEN: usize = 128;
/// The time for a request, and for the confirmation of a handoff: longer than the process can be expected to be preempted.
const TIMEOUT: Duration = Duration::from_secs(1);
/// The limit of files that are kept open.
const MAX_FILES: usize = 64;
