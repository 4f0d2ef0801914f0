//! tokio's readiness of a socket.

use std::io::{self, ErrorKind};
use std::net;

use tokio::io::Interest;
use tokio::net::TcpStream;

use crate::{NameCall, Result};

/// Registers a non-blocking socket with this thread's runtime.
///
/// # Errors
///
/// Of epoll_ctl(2): ENOMEM, or ENOSPC when no watch is left (epoll(7), `fs.epoll.max_user_watches`).
pub fn register_stream(socket: net::TcpStream) -> Result<TcpStream> {
    TcpStream::from_std(socket)
        .call("epoll_ctl(2), which needs memory and fs.epoll.max_user_watches")
}

/// Clears tokio's readiness of the socket, so that the next poll waits for a new event.
pub fn clear_ready(socket: &TcpStream, interest: Interest) {
    let _ = socket.try_io(interest, || -> io::Result<()> {
        Err(ErrorKind::WouldBlock.into())
    });
}

/// Whether the same call may succeed later: the socket was not ready (EAGAIN), or a signal came first (EINTR).
pub fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}
