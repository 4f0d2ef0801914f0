//! How processes with the preloaded library reach the attendant: an abstract socket, one connection a
//! [request](peername_identity::Request).
//!
//! Its name and the secret that opens a request stand in the table, which nobody else can read.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use peername_identity::{Request, Settings, Signature, Wish};
use peername_sys::{NameCall, Result};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind,
    listen, recv, recvmsg, sendmsg, socket_with,
};

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
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let listener = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
            .call("socket(AF_UNIX)")?;
        let name = settings.name().map(u64::to_ne_bytes).concat();
        let address = SocketAddrUnix::new_abstract_name(&name).call("bind(AF_UNIX)")?;
        bind(&listener, &address).call("bind(AF_UNIX)")?;
        listen(&listener, BACKLOG).call("listen(AF_UNIX)")?;
        Ok(Self::on(listener, settings))
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
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        while let Ok(socket) = accept_with(&self.listener, flags) {
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
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let iov = &mut [IoSliceMut::new(&mut bytes)];
        match recvmsg(&self.socket, iov, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Ok(message) if message.bytes == Request::LEN => {}
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return true,
            _ => return false,
        }
        let request = Request::from_bytes(&bytes).filter(|request| request.secret == secret);
        match request.map(|request| request.wish) {
            Some(Wish::Park { listener }) => {
                if let Some(connection) = descriptor(&mut control) {
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
            let nothing = IoSlice::new(b"-");
            let mut control = SendAncillaryBuffer::default();
            let flags = SendFlags::NOSIGNAL;
            let _ = sendmsg(&self.socket, &[nothing], &mut control, flags);
            return false;
        };
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let descriptors = [connection.as_fd()];
        control.push(SendAncillaryMessage::ScmRights(&descriptors));
        let one = IoSlice::new(b"+");
        let sent = sendmsg(&self.socket, &[one], &mut control, SendFlags::NOSIGNAL);
        if sent.is_err() {
            attendant.give_back(connection, listener);
            return false;
        }
        self.lent = Some((connection, listener));
        true
    }

    /// The taker has it once it says so; if it goes away before, somebody else may have it.
    fn confirm(&mut self, attendant: &mut Attendant) -> bool {
        match recv(&self.socket, &mut [0; 1], RecvFlags::empty()) {
            Ok((1.., _)) => self.lent = None,
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return true,
            _ => {
                if let Some((connection, listener)) = self.lent.take() {
                    attendant.give_back(connection, listener);
                }
            }
        }
        false
    }
}

fn descriptor(control: &mut RecvAncillaryBuffer<'_>) -> Option<OwnedFd> {
    control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    })
}

/// Processes that may be in the queue at once; more are refused, and with them their connections.
const BACKLOG: i32 = 4096;
