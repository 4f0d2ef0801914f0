//! How processes with the preloaded library reach the attendant: an abstract socket, one connection a
//! [request](peername_identity::Request).
//!
//! Its name and the secret that opens a request stand in the table, which nobody else can read.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use peername_identity::{Request, Settings, Signature, Wish};
use peername_sys::passing::{accept, listen, receive_octets, send_octets};
use peername_sys::{Failed, Result};

use super::Attendant;

/// The attendant's socket, and who is speaking to it.
#[derive(Debug)]
pub struct Channel {
    listener: OwnedFd,
    secret: Signature,
    conversations: Vec<Conversation>,
}

#[derive(Debug)]
struct Conversation {
    socket: OwnedFd,
    /// What was handed over and has not been confirmed.
    lent: Option<(OwnedFd, SocketAddr)>,
}

impl Channel {
    /// Opens the socket that the table names.
    ///
    /// # Errors
    ///
    /// Those of socket(2), bind(2) and listen(2).
    pub fn open(settings: Settings<'_>) -> Result<Self> {
        let name = settings.name().map(u64::to_ne_bytes).concat();
        Ok(Self::on(listen(&name, BACKLOG)?, settings))
    }

    /// One whose socket is open already.
    pub fn on(listener: OwnedFd, settings: Settings<'_>) -> Self {
        Self {
            listener,
            secret: settings.secret(),
            conversations: Vec::new(),
        }
    }

    /// What to wait for: readable when [`Channel::serve`] has something to do.
    pub(super) fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let spoken_to = self.conversations.iter().map(|one| one.socket.as_fd());
        std::iter::once(self.listener.as_fd()).chain(spoken_to)
    }

    /// Serves whoever has said something, without waiting.
    pub(super) fn serve(&mut self, attendant: &mut Attendant) {
        while let Ok(socket) = accept(&self.listener) {
            let lent = None;
            self.conversations.push(Conversation { socket, lent });
        }
        let secret = self.secret;
        self.conversations
            .retain_mut(|conversation| conversation.go_on(secret, attendant));
    }
}

/// The socket, for [`Channel::on`] in another process.
impl From<Channel> for OwnedFd {
    fn from(channel: Channel) -> Self {
        channel.listener
    }
}

impl Conversation {
    /// Returns whether it goes on.
    fn go_on(&mut self, secret: Signature, attendant: &mut Attendant) -> bool {
        if self.lent.is_some() {
            return self.confirm(attendant);
        }
        let mut bytes = [0; Request::LEN];
        let connection = match receive_octets(&self.socket, &mut bytes) {
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
            None => false,
        }
    }

    fn lend(&mut self, attendant: &mut Attendant, listener: SocketAddr) -> bool {
        let Some(connection) = attendant.take(listener) else {
            let _ = send_octets(&self.socket, b"-", None);
            return false;
        };
        if send_octets(&self.socket, b"+", Some(connection.as_fd())).is_err() {
            attendant.give_back(connection, listener);
            return false;
        }
        self.lent = Some((connection, listener));
        true
    }

    /// The taker has it once it says so; if it goes away before, somebody else may have it.
    fn confirm(&mut self, attendant: &mut Attendant) -> bool {
        match receive_octets(&self.socket, &mut [0; 1]) {
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

fn is_not_yet(error: &Failed) -> bool {
    error.source.kind() == ErrorKind::WouldBlock
}

/// Processes that may be in the queue at once; more are refused, and with them their connections.
const BACKLOG: i32 = 4096;
