//! The channel by which processes with the preloaded library reach the header waiter: a pair of connected sockets for each
//! [request](peername_identity::WaiterRequest), one end of which the supervisor adds to the process that asks for it.
//!
//! It has no name, so no other process of the host can reach it. Nor is a process of the program believed, since a server may
//! have dropped its privileges and been compromised since: what a request is about are the sockets that come with it, and the
//! kernel is asked about these. The library sends its request as soon as it has the socket, so a silent process is not
//! waited for, and the number of silent ones is bounded.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use peername_identity::{Settings, WaiterRequest};
use peername_sys::event::epoll::{Epoll, Interest};
use peername_sys::ipc::fd_passing::{receive_foreign_fds, send_bytes, seqpacket_pair};
use peername_sys::ipc::foreign_fd::ForeignFd;
use peername_sys::process::stderr::try_write_line;
use peername_sys::socket::upstream::local_addr;
use peername_sys::tcp::foreign_listener::ForeignListener;
use peername_sys::tcp::{socket_info, stream};
use peername_sys::{NameCall, Result, SyscallError};

use super::{HeaderWaiter, ListenerAddr};

/// The header waiter's ends of the open channels.
#[derive(Debug)]
pub struct RequestChannel {
    settings: Settings<'static>,
    epoll: Epoll,
    /// The open conversations, the oldest first.
    conversations: Vec<Conversation>,
    /// Files that were sent instead of sockets.
    files: Vec<ForeignFd>,
}

#[derive(Debug)]
struct Conversation {
    /// Closing it closes what is queued in it, too.
    socket: ForeignFd,
    begun: Instant,
    /// A connection that was handed over and is not confirmed yet, and its listener.
    lent: Option<(ForeignFd, ListenerAddr)>,
}

impl RequestChannel {
    /// Creates a channel without conversations.
    ///
    /// # Errors
    ///
    /// That of epoll_create1(2).
    pub fn new(settings: Settings<'static>) -> Result<Self> {
        Ok(Self {
            settings,
            epoll: Epoll::new()?,
            conversations: Vec::new(),
            files: Vec::new(),
        })
    }

    /// Opens a conversation, and returns the end for the process that has asked for it.
    ///
    /// # Errors
    ///
    /// EMFILE or ENFILE: there is no descriptor, and no silent conversation that could be closed for it.
    pub(crate) fn open(&mut self) -> Result<OwnedFd> {
        let silent = self.conversations.iter().filter(|one| one.is_silent());
        if silent.count() >= MAX_SILENT {
            self.close_oldest_silent();
        }
        let (ours, theirs) = match seqpacket_pair() {
            Err(error) if error.is_exhaustion() && self.close_oldest_silent() => seqpacket_pair()?,
            opened => opened?,
        };
        stream::set_nonblocking(&ours, true).call("ioctl(FIONBIO)")?;
        self.epoll.add(&ours, 0, Interest::Readable)?;
        self.conversations.push(Conversation {
            socket: ours.into(),
            begun: Instant::now(),
            lent: None,
        });
        Ok(theirs)
    }

    /// When [`RequestChannel::serve`] must be called even if it is not readable.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let mut silent = self.conversations.iter().filter(|one| one.is_silent());
        silent.next().map(|one| one.begun + SILENCE_TIMEOUT)
    }

    /// Serves processes that have sent something, without waiting, and ends conversations that have been silent too long.
    pub(crate) fn serve(&mut self, waiter: &mut HeaderWaiter) {
        let Self {
            settings,
            conversations,
            files,
            ..
        } = self;
        let now = Instant::now();
        conversations.retain_mut(|conversation| {
            conversation.drive(*settings, files, waiter)
                && !(conversation.is_silent() && conversation.begun + SILENCE_TIMEOUT <= now)
        });
    }

    /// Closes the conversation that has been silent for longest. Returns whether there is one.
    fn close_oldest_silent(&mut self) -> bool {
        let silent = self.conversations.iter().position(Conversation::is_silent);
        silent.map(|at| self.conversations.remove(at)).is_some()
    }
}

impl AsFd for RequestChannel {
    /// Readable when `RequestChannel::serve` has something to do.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

impl Conversation {
    /// Whether the process has sent nothing yet.
    fn is_silent(&self) -> bool {
        self.lent.is_none()
    }

    /// Processes the request, if there is one. Returns whether the conversation goes on.
    fn drive(
        &mut self,
        settings: Settings<'_>,
        files: &mut Vec<ForeignFd>,
        waiter: &mut HeaderWaiter,
    ) -> bool {
        if self.lent.is_some() {
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
        let request = bytes.get(..len).and_then(WaiterRequest::from_bytes);
        let listener = match request {
            Some(WaiterRequest::Sweep) => {
                waiter.sweep();
                return false;
            }
            // The request has woken the supervisor, which then reads the refusals.
            Some(WaiterRequest::Log) | None => return false,
            Some(WaiterRequest::Listening) => {
                if let Some(listener) = fds.pop().and_then(ForeignListener::from_fd) {
                    note_listener(waiter, settings, &listener);
                }
                return false;
            }
            _ => fds.pop().and_then(|fd| covered_listener(settings, fd)),
        };
        let Some(listener) = listener else {
            return false;
        };
        match request {
            Some(WaiterRequest::Park) => {
                let connection = fds.pop().filter(|one| is_accepted_from(&listener, one));
                if let Some(connection) = connection {
                    waiter.park(connection, &listener);
                }
                false
            }
            _ => self.lend(waiter, (&listener).into()),
        }
    }

    fn receive(&self, bytes: &mut [u8]) -> Result<(usize, Vec<ForeignFd>)> {
        receive_foreign_fds(&self.socket, bytes, WaiterRequest::MAX_DESCRIPTORS)
    }

    fn lend(&mut self, waiter: &mut HeaderWaiter, listener: ListenerAddr) -> bool {
        let Some(connection) = waiter.take_ready(listener) else {
            let _ = send_bytes(&self.socket, b"-", None);
            return false;
        };
        if send_bytes(&self.socket, b"+", Some(connection.as_fd())).is_err() {
            waiter.return_ready(connection, listener);
            return false;
        }
        self.lent = Some((connection, listener));
        true
    }

    /// Completes the handoff once the process confirms it. If it closes its end before, the connection is returned.
    fn confirm(&mut self, waiter: &mut HeaderWaiter) -> bool {
        match self.receive(&mut [0; 1]) {
            Ok((1.., _)) => self.lent = None,
            Err(error) if is_not_yet(&error) => return true,
            _ => {
                if let Some((connection, listener)) = self.lent.take() {
                    waiter.return_ready(connection, listener);
                }
            }
        }
        false
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
    let (at, own) = (ListenerAddr::from(listener), local_addr(connection).ok());
    let is_at = |own: SocketAddr| {
        own.port() == at.addr.port()
            && (at.addr.ip().is_unspecified()
                || at.addr.ip().to_canonical() == own.ip().to_canonical())
    };
    let is_tcp = socket_info::protocol(connection).is_some();
    is_tcp
        && !socket_info::is_listener(connection)
        && own.is_some_and(is_at)
        && socket_info::netns_cookie(connection) == at.namespace
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

/// The limit of conversations without a request: the library needs some microseconds for it.
const MAX_SILENT: usize = 64;
/// The timeout of a silent conversation: longer than a process of the program is preempted before its request.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(1);
/// The limit of files that are kept open.
const MAX_FILES: usize = 64;
