//! The channel by which processes with the preloaded library reach the header waiter: an abstract socket, one connection a
//! [request](peername_identity::WaiterRequest).
//!
//! Its name and the secret that opens a request are in the table, which no other user can read. But the name is in
//! /proc/net/unix too, so every user of the host can connect. The peer's user (SO_PEERCRED) decides nothing, because
//! servers change their user. The library sends its request as soon as it is connected, so a silent peer is a stranger: it
//! is not waited for, and the number of silent peers is bounded.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use peername_identity::{Secret, Settings, WaiterAction, WaiterRequest};
use peername_sys::event::epoll::{Epoll, Interest};
use peername_sys::ipc::fd_passing::{accept, listen_abstract, receive_bytes, send_bytes};
use peername_sys::{Result, SyscallError};

use super::HeaderWaiter;

/// The header waiter's socket, and its connected peers.
#[derive(Debug)]
pub struct RequestChannel {
    listener: OwnedFd,
    secret: Secret,
    /// Watches the listener, unless descriptors are exhausted, and all peers.
    epoll: Epoll,
    /// The open conversations, the oldest first.
    conversations: Vec<Conversation>,
    /// When to accept again, while no descriptor is free for another peer.
    full_until: Option<Instant>,
}

#[derive(Debug)]
struct Conversation {
    socket: OwnedFd,
    begun: Instant,
    /// A connection that was handed over and is not confirmed yet, and its listener.
    lent: Option<(OwnedFd, SocketAddr)>,
}

impl RequestChannel {
    /// Opens the socket that the table names.
    ///
    /// # Errors
    ///
    /// Those of socket(2), bind(2), listen(2) and epoll_create1(2).
    pub fn open(settings: Settings<'_>) -> Result<Self> {
        let name = settings.name().map(u64::to_ne_bytes).concat();
        let (listener, epoll) = (listen_abstract(&name, BACKLOG)?, Epoll::new()?);
        epoll.add(&listener, 0, Interest::Readable)?;
        Ok(Self {
            listener,
            secret: settings.secret(),
            epoll,
            conversations: Vec::new(),
            full_until: None,
        })
    }

    /// When [`RequestChannel::serve`] must be called even if it is not readable.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let mut silent = self.conversations.iter().filter(|one| one.is_silent());
        let silent = silent.next().map(|one| one.begun + SILENCE_TIMEOUT);
        silent.into_iter().chain(self.full_until).min()
    }

    /// Serves peers that have sent something, without waiting, and disconnects peers that have been silent too long.
    pub(crate) fn serve(&mut self, waiter: &mut HeaderWaiter) {
        let (secret, now) = (self.secret, Instant::now());
        self.conversations.retain_mut(|conversation| {
            conversation.drive(secret, waiter)
                && !(conversation.is_silent() && conversation.begun + SILENCE_TIMEOUT <= now)
        });
        self.accept_again();
        for _ in 0..ACCEPT_BATCH {
            match accept(&self.listener) {
                Ok(socket) => self.begin(socket, waiter),
                Err(error) if !error.is_exhaustion() => break,
                Err(_) if self.disconnect_oldest_silent() => {}
                Err(_) => {
                    self.pause_accepting(now + ACCEPT_RETRY_DELAY);
                    break;
                }
            }
        }
    }

    /// Stops watching the listener for that long: it would stay readable while nothing can be accepted from it.
    fn pause_accepting(&mut self, until: Instant) {
        let _ = self.epoll.delete(&self.listener);
        self.full_until = Some(until);
    }

    fn accept_again(&mut self) {
        if self.full_until.take().is_some() {
            // The listener was registered before, so the registration does not fail for lack of memory.
            let _ = self.epoll.add(&self.listener, 0, Interest::Readable);
        }
    }

    fn begin(&mut self, socket: OwnedFd, waiter: &mut HeaderWaiter) {
        let mut conversation = Conversation {
            socket,
            begun: Instant::now(),
            lent: None,
        };
        if conversation.drive(self.secret, waiter) {
            let silent = self.conversations.iter().filter(|one| one.is_silent());
            if silent.count() >= MAX_SILENT_PEERS {
                self.disconnect_oldest_silent();
            }
            // A peer that can't be watched is disconnected, and retries.
            if self
                .epoll
                .add(&conversation.socket, 0, Interest::Readable)
                .is_ok()
            {
                self.conversations.push(conversation);
            }
        }
    }

    /// Disconnects the peer that has been silent for longest. Returns whether there is one.
    fn disconnect_oldest_silent(&mut self) -> bool {
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
    /// Whether the peer has sent nothing yet. A peer that a connection was lent to has proved that it knows the secret.
    fn is_silent(&self) -> bool {
        self.lent.is_none()
    }

    /// Processes the peer's message, if there is one. Returns whether the conversation goes on.
    fn drive(&mut self, secret: Secret, waiter: &mut HeaderWaiter) -> bool {
        if self.lent.is_some() {
            return self.confirm(waiter);
        }
        let mut bytes = [0; WaiterRequest::LEN];
        let connection = match receive_bytes(&self.socket, &mut bytes) {
            Ok((WaiterRequest::LEN, connection)) => connection,
            Err(error) if is_not_yet(&error) => return true,
            _ => return false,
        };
        let request = WaiterRequest::from_bytes(&bytes).filter(|request| request.secret == secret);
        match request.map(|request| request.action) {
            Some(WaiterAction::Park { listener }) => {
                if let Some(connection) = connection {
                    waiter.park(connection, listener);
                }
                false
            }
            Some(WaiterAction::Take { listener }) => self.lend(waiter, listener),
            Some(WaiterAction::Sweep) => {
                waiter.sweep();
                false
            }
            // The request has woken the supervisor, which then reads the refusals.
            Some(WaiterAction::Log) | None => false,
        }
    }

    fn lend(&mut self, waiter: &mut HeaderWaiter, listener: SocketAddr) -> bool {
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

    /// Completes the handoff once the peer confirms it. If the peer disconnects before, the connection is returned.
    fn confirm(&mut self, waiter: &mut HeaderWaiter) -> bool {
        match receive_bytes(&self.socket, &mut [0; 1]) {
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

fn is_not_yet(error: &SyscallError) -> bool {
    error.source.kind() == ErrorKind::WouldBlock
}

/// The accept backlog: processes that may be queued at once. A further one is refused, and so is the connection
/// that it wanted to park.
const BACKLOG: i32 = 4096;
/// The batch of peers accepted before the open conversations are driven again.
const ACCEPT_BATCH: usize = 64;
/// The limit of peers that have sent nothing yet; the library needs some microseconds.
const MAX_SILENT_PEERS: usize = 64;
/// The timeout of a silent peer: longer than a process of the program is preempted between connect(2) and its request.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(1);
/// From an accept(2) without a free descriptor to the retry: soon enough for a peer in the backlog, which gives up after
/// 250 ms.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(50);
