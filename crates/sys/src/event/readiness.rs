//! Registers descriptors with the tokio runtime, and clears the readiness that it caches.

use std::io::{self, ErrorKind};
use std::net;
use std::os::fd::OwnedFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::TcpStream;

use crate::{NameCall, Result};

/// Registers a non-blocking socket with this thread's runtime.
pub fn register_stream(socket: net::TcpStream) -> Result<TcpStream> {
    TcpStream::from_std(socket)
        .call("epoll_ctl(2), which needs memory and fs.epoll.max_user_watches")
}

/// Registers any non-blocking descriptor with this thread's runtime, to wait until it is readable: a UDP socket, a process
/// descriptor.
///
/// # Errors
///
/// Of epoll_ctl(2): ENOMEM, ENOSPC (`fs.epoll.max_user_watches`), or EPERM for a file that can't be waited for.
pub fn register_readable(fd: OwnedFd) -> Result<AsyncFd<OwnedFd>> {
    // SAFETY: an OwnedFd is open and the same for as long as it lives, and AsyncFd owns it.
    unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }
        .map_err(|error| error.into_parts().1)
        .call("epoll_ctl(EPOLL_CTL_ADD)")
}

/// Clears tokio's readiness of the socket, so that the next poll waits for a new event.
pub fn clear_ready(socket: &TcpStream, interest: Interest) {
    // An operation that returns WouldBlock makes tokio clear it.
    let _ = socket.try_io(interest, || -> io::Result<()> {
        Err(ErrorKind::WouldBlock.into())
    });
}

/// Whether the same call may succeed later: the socket was not ready (EAGAIN), or a signal came first (EINTR).
pub fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}
