//! How processes with the preloaded library reach the attendant: an abstract socket, one connection a
//! [request](peername_identity::Request).
//!
//! Its name and the secret that opens a request stand in the table, which nobody else can read. But the name stands
//! in /proc/net/unix too, so anybody on the host can connect. Who it is can't be asked (SO_PEERCRED): servers
//! change their user. The library makes its request as soon as it is connected, so who says nothing is a stranger, and
//! is neither waited for nor kept in any number.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use peername_identity::{Request, Settings, Signature, Wish};
use peername_sys::event::epoll::{Epoll, Interest};
use peername_sys::ipc::fd_passing::{accept, listen_abstract, receive_bytes, send_bytes};
use peername_sys::{Result, SyscallError};

use super::Attendant;

/// The attendant's socket, and who is speaking to it.
#[derive(Debug)]
pub struct Channel {
    listener: OwnedFd,
    secret: Signature,
    /// Of the listener, unless it is full, and of everybody who is speaking.
    epoll: Epoll,
    /// In the order in which they began.
    conversations: Vec<Conversation>,
    /// While there is no descriptor for the next one: when to try again.
    full_until: Option<Instant>,
}

#[derive(Debug)]
struct Conversation {
    socket: OwnedFd,
    begun: Instant,
    /// What was handed over and has not been confirmed.
    lent: Option<(OwnedFd, SocketAddr)>,
}

impl Channel {
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

    /// When [`Channel::serve`] must be called even if it is not readable.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let mut silent = self.conversations.iter().filter(|one| one.is_silent());
        let silent = silent.next().map(|one| one.begun + SILENCE);
        silent.into_iter().chain(self.full_until).min()
    }

    /// Serves whoever has said something, without waiting, and hangs up on those who have been silent too long.
    pub(crate) fn serve(&mut self, attendant: &mut Attendant) {
        let (secret, now) = (self.secret, Instant::now());
        self.conversations.retain_mut(|conversation| {
            conversation.go_on(secret, attendant)
                && !(conversation.is_silent() && conversation.begun + SILENCE <= now)
        });
        self.accept_again();
        for _ in 0..AT_ONCE {
            match accept(&self.listener) {
                Ok(socket) => self.begin(socket, attendant),
                Err(error) if !error.is_exhaustion() => break,
                Err(_) if self.hang_up_on_a_silent_one() => {}
                Err(_) => {
                    self.pause_accepting(now + TRY_AGAIN);
                    break;
                }
            }
        }
    }

    /// Readable all the time while nobody can be taken from it.
    fn pause_accepting(&mut self, until: Instant) {
        let _ = self.epoll.delete(&self.listener);
        self.full_until = Some(until);
    }

    fn accept_again(&mut self) {
        if self.full_until.take().is_some() {
            // It was watched before, so the kernel has room for it.
            let _ = self.epoll.add(&self.listener, 0, Interest::Readable);
        }
    }

    fn begin(&mut self, socket: OwnedFd, attendant: &mut Attendant) {
        let mut conversation = Conversation {
            socket,
            begun: Instant::now(),
            lent: None,
        };
        if conversation.go_on(self.secret, attendant) {
            let silent = self.conversations.iter().filter(|one| one.is_silent());
            if silent.count() >= MOST_SILENT {
                self.hang_up_on_a_silent_one();
            }
            // One that can't be watched is hung up on, and asks again.
            if self
                .epoll
                .add(&conversation.socket, 0, Interest::Readable)
                .is_ok()
            {
                self.conversations.push(conversation);
            }
        }
    }

    /// The one that has been silent for longest. Returns whether there is one.
    fn hang_up_on_a_silent_one(&mut self) -> bool {
        let silent = self.conversations.iter().position(Conversation::is_silent);
        silent.map(|at| self.conversations.remove(at)).is_some()
    }
}

impl AsFd for Channel {
    /// Readable when `Channel::serve` has something to do.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

impl Conversation {
    /// Whether nothing has been heard of it. Whom something was lent to has shown that it is none of the strangers.
    fn is_silent(&self) -> bool {
        self.lent.is_none()
    }

    /// Returns whether it goes on.
    fn go_on(&mut self, secret: Signature, attendant: &mut Attendant) -> bool {
        if self.lent.is_some() {
            return self.confirm(attendant);
        }
        let mut bytes = [0; Request::LEN];
        let connection = match receive_bytes(&self.socket, &mut bytes) {
            Ok((Request::LEN, connection)) => connection,
            Err(error) if is_not_yet(&error) => return true,
            _ => return false,
        };
        let request = Request::from_bytes(&bytes).filter(|request| request.secret == secret);
        match request.map(|request| request.wish) {
            Some(Wish::Park { listener }) => {
                if let Some(connection) = connection {
                    attendant.park(connection, listener);
                }
                false
            }
            Some(Wish::Take { listener }) => self.lend(attendant, listener),
            Some(Wish::Sweep) => {
                attendant.sweep();
                false
            }
            // To wake the supervisor up is all of it.
            Some(Wish::Log) | None => false,
        }
    }

    fn lend(&mut self, attendant: &mut Attendant, listener: SocketAddr) -> bool {
        let Some(connection) = attendant.take(listener) else {
            let _ = send_bytes(&self.socket, b"-", None);
            return false;
        };
        if send_bytes(&self.socket, b"+", Some(connection.as_fd())).is_err() {
            attendant.give_back(connection, listener);
            return false;
        }
        self.lent = Some((connection, listener));
        true
    }

    /// The taker has it once it says so; if it goes away before, somebody else may have it.
    fn confirm(&mut self, attendant: &mut Attendant) -> bool {
        match receive_bytes(&self.socket, &mut [0; 1]) {
            Ok((1.., _)) => self.lent = None,
            Err(error) if is_not_yet(&error) => return true,
            _ => {
                if let Some((connection, listener)) = self.lent.take() {
                    attendant.give_back(connection, listener);
                }
            }
        }
        false
    }
}

fn is_not_yet(error: &SyscallError) -> bool {
    error.source.kind() == ErrorKind::WouldBlock
}

/// Processes that may be in the queue at once; more are refused, and with them their connections.
const BACKLOG: i32 = 4096;
/// Conversations begun before those that go on are looked at again.
const AT_ONCE: usize = 64;
/// Of those who have not said anything yet; the library needs some microseconds.
const MOST_SILENT: usize = 64;
/// Longer than a process of the program's is kept from the processor between connect(2) and its request.
const SILENCE: Duration = Duration::from_secs(1);
/// Soon enough for who waits in the queue, who gives up after 250 ms.
const TRY_AGAIN: Duration = Duration::from_millis(50);
