//! Another program's listening socket, of which we have a descriptor too.
//!
//! The open file is shared: what is changed about it here is changed there. So nothing is, but by
//! [`ForeignListener::defer_accept`].

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::fs::{OFlags, fcntl_getfl};
use rustix::net::{SocketFlags, acceptfrom_with};
use socket2::{SockRef, Type};

use crate::event::wait_readable;
use crate::socket::set_int;
use crate::tcp::socket_info::{self, StreamProtocol};

/// A TCP socket that listens.
#[derive(Debug)]
pub struct ForeignListener {
    socket: OwnedFd,
    /// Where.
    pub addr: SocketAddr,
    /// Whether accept(2) answers EAGAIN rather than wait (O_NONBLOCK).
    pub nonblocking: bool,
    /// The network netns_cookie of all its connections, as [`socket_info::netns_cookie`] tells it. `None` if they
    /// have to be asked, since they may be of TCP or not.
    pub netns_cookie: Option<u64>,
}

impl ForeignListener {
    /// Looks at a descriptor. `None` if it is anything else than a TCP socket that listens.
    pub fn from_fd(socket: OwnedFd) -> Option<Self> {
        let known = SockRef::from(&socket);
        let listens = known.is_listener().unwrap_or(false);
        if !listens || known.r#type().ok()? != Type::STREAM {
            return None;
        }
        let tcp = socket_info::protocol(&socket) == Some(StreamProtocol::Tcp);
        let netns_cookie = tcp.then(|| socket_info::netns_cookie(&socket));
        Self::from_known_fd(socket, netns_cookie)
    }

    /// Looks at what can change of a socket that [`ForeignListener::from_fd`] has seen, and whose
    /// [`ForeignListener::netns_cookie`] it has told. `None` if it has no address of the Internet.
    pub fn from_known_fd(socket: OwnedFd, netns_cookie: Option<u64>) -> Option<Self> {
        let addr = SockRef::from(&socket).local_addr().ok()?.as_socket()?;
        let nonblocking = fcntl_getfl(&socket).ok()?.contains(OFlags::NONBLOCK);
        Some(Self {
            socket,
            addr,
            nonblocking,
            netns_cookie,
        })
    }

    /// The next connection, closed on exec and blocking or not as it is wanted, and its peer if that is one of
    /// the Internet. `WouldBlock` if there is none now.
    ///
    /// On a blocking socket the kernel is asked first whether there is one. That goes wrong only if a
    /// process that nobody supervises takes it in between.
    pub fn accept(&self, nonblocking: bool) -> io::Result<(OwnedFd, Option<SocketAddr>)> {
        let now = Some(Duration::ZERO);
        if !self.nonblocking && !wait_readable([self.as_fd()], now).unwrap_or(false) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let wanted = match nonblocking {
            true => SocketFlags::NONBLOCK,
            false => SocketFlags::empty(),
        };
        let (socket, peer) = acceptfrom_with(&self.socket, SocketFlags::CLOEXEC | wanted)?;
        Ok((socket, peer.and_then(|peer| peer.try_into().ok())))
    }

    /// Lets connections appear only once they have sent something, or after a second
    /// (TCP_DEFER_ACCEPT, tcp(7)).
    pub fn defer_accept(&self) {
        // It saves work where it is to be had, and nothing depends on it.
        let _ = set_int(
            self.socket.as_fd(),
            libc::SOL_TCP,
            libc::TCP_DEFER_ACCEPT,
            1,
        );
    }
}

impl AsFd for ForeignListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
