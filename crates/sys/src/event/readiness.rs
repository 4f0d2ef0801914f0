//! What the runtime knows of a socket.

use std::io::{self, ErrorKind};
use std::net;

use tokio::io::Interest;
use tokio::net::TcpStream;

use crate::{NameCall, Result};

/// Hands a socket that does not block to this thread's runtime.
///
/// # Errors
///
/// epoll_ctl(2): memory has run out, or watches (ENOSPC; epoll(7), `fs.epoll.max_user_watches`).
pub fn register_stream(socket: net::TcpStream) -> Result<TcpStream> {
    TcpStream::from_std(socket)
        .call("epoll_ctl(2), which needs memory and fs.epoll.max_user_watches")
}

/// Tells tokio that the socket is not ready, so that the next poll waits for a new event.
pub fn clear_ready(socket: &TcpStream, interest: Interest) {
    let _ = socket.try_io(interest, || -> io::Result<()> {
        Err(ErrorKind::WouldBlock.into())
    });
}

/// Whether the same call may do later what it did not do now: "not ready", or a signal came first.
pub fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}
