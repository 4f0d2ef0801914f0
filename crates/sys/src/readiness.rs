//! What the runtime believes of a socket that was read or written past it.

use std::io::{self, ErrorKind};

use tokio::io::Interest;
use tokio::net::TcpStream;

/// Tells tokio that the socket is not ready, so that the next poll waits for a new event.
pub fn not_ready(socket: &TcpStream, interest: Interest) {
    let _ = socket.try_io(interest, || -> io::Result<()> {
        Err(ErrorKind::WouldBlock.into())
    });
}

/// Whether the same call may do later what it did not do now: "not ready", or a signal came first.
pub fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}
