//! Another program's listening socket, of which this process has a duplicate descriptor.
//!
//! The open file is shared: a change here affects the program. So nothing is changed, except by
//! [`ForeignListener::defer_accept`].

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::fs::{OFlags, fcntl_getfl};
use rustix::net::{SocketFlags, acceptfrom_with, sockopt};
use socket2::{SockRef, Type};

use crate::Errno;
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
    /// The network namespace cookie of all its connections ([`socket_info::netns_cookie`]). `None` for an MPTCP listener: a
    /// connection of it may be TCP or MPTCP, so each has to be examined.
    pub netns_cookie: Option<u64>,
}

impl ForeignListener {
    /// Examines a descriptor. `None` if it is anything but a listening TCP or MPTCP socket.
    pub fn from_fd(socket: ForeignFd) -> Option<Self> {
        let options = SockRef::from(&socket);
        let is_listener = options.is_listener().unwrap_or(false);
        if !is_listener || options.r#type().ok()? != Type::STREAM {
            return None;
        }
        let is_tcp = socket_info::protocol(&socket)? == StreamProtocol::Tcp;
        let netns_cookie = is_tcp.then(|| socket_info::netns_cookie(&socket));
        Self::from_known_fd(socket, netns_cookie)
    }

    /// Takes a socket that [`ForeignListener::from_fd`] has examined before, with its [`ForeignListener::netns_cookie`], and
    /// reads only what may have changed. `None` if the socket has no IP address.
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

    /// Accepts the next connection, close-on-exec and blocking or not as requested. Returns its peer's address, too, if that is
    /// an IP address.
    ///
    /// As the listener may be a blocking one, or become one, poll(2) checks first whether there is a connection. If another
    /// process accepts that in between, the wait for the next one ends in bounded time, as closing a [`ForeignFd`] does.
    ///
    /// # Errors
    ///
    /// `WouldBlock` if there is none; else those of accept(2).
    pub fn accept(&self, nonblocking: bool) -> io::Result<(ForeignFd, Option<SocketAddr>)> {
        let has_connection = wait_readable([self.as_fd()], Some(Duration::ZERO)).unwrap_or(false);
        if !has_connection {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let mut flags = SocketFlags::CLOEXEC;
        flags.set(SocketFlags::NONBLOCK, nonblocking);
        let accepted = within_limit(|| acceptfrom_with(&self.socket, flags));
        let (socket, peer) = accepted.map_err(|error| match error {
            Errno::INTR => io::ErrorKind::WouldBlock.into(),
            error => io::Error::from(error),
        })?;
        Ok((socket.into(), peer.and_then(|peer| peer.try_into().ok())))
    }

    /// How long accept(2) waits for a connection, if the listener is a blocking one (SO_RCVTIMEO, socket(7)); `None` without a
    /// limit.
    pub fn accept_timeout(&self) -> Option<Duration> {
        sockopt::socket_timeout(self, sockopt::Timeout::Recv)
            .ok()
            .flatten()
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
