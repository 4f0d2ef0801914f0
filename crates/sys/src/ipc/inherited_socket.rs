//! A socket that another process bound: a service manager, `peername exec`, the predecessor of an upgrade, or the jail.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::{FdFlags, fcntl_setfd};
use socket2::{SockRef, Type};

use crate::{NameCall, Result};

/// A bound socket that this process inherited.
#[derive(Debug)]
pub struct InheritedSocket {
    socket: OwnedFd,
    /// Its address.
    pub addr: SocketAddr,
    /// Whether it is a TCP socket, rather than UDP.
    pub is_stream: bool,
    /// Descriptor number, from 3 on, with the name that the service manager gave it: for messages.
    pub label: String,
}

impl InheritedSocket {
    /// Reads the type and the address of a socket, and makes it close-on-exec.
    ///
    /// # Errors
    ///
    /// ENOTSOCK for another kind of file; [`io::ErrorKind::Other`] for a socket that is neither IPv4 nor IPv6.
    pub fn new(socket: OwnedFd, label: String) -> Result<Self> {
        fcntl_setfd(&socket, FdFlags::CLOEXEC).call("fcntl(F_SETFD)")?;
        let options = SockRef::from(&socket);
        let kind = options
            .r#type()
            .call("getsockopt(SO_TYPE) of an inherited socket")?;
        let is_stream = kind == Type::STREAM;
        let addr = options
            .local_addr()
            .call("getsockname(2) of an inherited socket")?
            .as_socket()
            .ok_or_else(|| io::Error::other("neither IPv4 nor IPv6"))
            .call("getsockname(2) of an inherited socket")?;
        Ok(Self {
            addr,
            socket,
            is_stream,
            label,
        })
    }

    /// Duplicates the descriptor and makes the socket non-blocking.
    pub fn try_clone(&self) -> Result<OwnedFd> {
        let shared = self.socket.try_clone().call("fcntl(F_DUPFD_CLOEXEC)")?;
        SockRef::from(&shared)
            .set_nonblocking(true)
            .call("fcntl(F_SETFL)")?;
        Ok(shared)
    }
}

impl AsFd for InheritedSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
