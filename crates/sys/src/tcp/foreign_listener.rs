//! Another program's listening socket, of which this process has a duplicate descriptor.
//!
//! The open file is shared: a change here affects the program. So nothing is changed, except by
//! [`ForeignListener::defer_accept`].

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::fs::{OFlags, fcntl_getfl};
use rustix::net::{SocketFlags, acceptfrom_with};
use socket2::{SockRef, Type};

use crate::event::wait_readable;
use crate::ipc::foreign_fd::{ForeignFd, within_limit};
use crate::socket::set_int;
use crate::tcp::socket_info::{self, StreamProtocol};

/// A listening TCP socket of another program.
#[derive(Debug)]
pub struct ForeignListener {
    socket: ForeignFd,
    /// The address it listens on.
    pub addr: SocketAddr,
    /// Whether accept(2) fails with EAGAIN rather than block (O_NONBLOCK).
    pub nonblocking: bool,
    /// The network namespace cookie of all its connections ([`socket_info::netns_cookie`]). `None` if each connection
    /// must be examined, because it may be TCP or not.
    pub netns_cookie: Option<u64>,
}

impl ForeignListener {
    /// Examines a descriptor. `None` if it is anything but a listening TCP socket.
    pub fn from_fd(socket: ForeignFd) -> Option<Self> {
        let known = SockRef::from(&socket);
        let listens = known.is_listener().unwrap_or(false);
        if !listens || known.r#type().ok()? != Type::STREAM {
            return None;
        }
        let tcp = socket_info::protocol(&socket)? == StreamProtocol::Tcp;
        let netns_cookie = tcp.then(|| socket_info::netns_cookie(&socket));
        Self::from_known_fd(socket, netns_cookie)
    }

    /// Reads what can change of a socket that [`ForeignListener::from_fd`] has examined, with
    /// the [`ForeignListener::netns_cookie`] of that time. `None` if it has no IP address.
    pub fn from_known_fd(socket: ForeignFd, netns_cookie: Option<u64>) -> Option<Self> {
        let addr = SockRef::from(&socket).local_addr().ok()?.as_socket()?;
        let nonblocking = fcntl_getfl(&socket).ok()?.contains(OFlags::NONBLOCK);
        Some(Self {
            socket,
            addr,
            nonblocking,
            netns_cookie,
        })
    }

    /// Accepts the next connection, close-on-exec and blocking or not as requested, and its peer's address if that is an
    /// IP address.
    ///
    /// poll(2) checks first whether there is one: the listener may be a blocking one, or become one. If another process accepts the
    /// connection in between, the wait for the next one is ended within a moment.
    ///
    /// # Errors
    ///
    /// `WouldBlock` if there is none; else those of accept(2).
    pub fn accept(&self, nonblocking: bool) -> io::Result<(ForeignFd, Option<SocketAddr>)> {
        let now = Some(Duration::ZERO);
        if !wait_readable([self.as_fd()], now).unwrap_or(false) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let wanted = match nonblocking {
            true => SocketFlags::NONBLOCK,
            false => SocketFlags::empty(),
        };
        let accepted =
            within_limit(|| acceptfrom_with(&self.socket, SocketFlags::CLOEXEC | wanted));
        let (socket, peer) = accepted.map_err(|error| match io::Error::from(error) {
            error if error.kind() == io::ErrorKind::Interrupted => io::ErrorKind::WouldBlock.into(),
            error => error,
        })?;
        Ok((socket.into(), peer.and_then(|peer| peer.try_into().ok())))
    }

    /// Defers connections until they have sent something, or for a second (TCP_DEFER_ACCEPT, tcp(7)).
    pub fn defer_accept(&self) {
        // An optimization: nothing depends on it.
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
