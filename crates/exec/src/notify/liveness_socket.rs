//! The supervisor's end of the liveness socket: by it the process of the admin endpoint ([`crate::admin`])
//! asks whether the event loop runs, and each of the two notices that the other has exited.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

/// The supervisor's end.
#[derive(Debug)]
pub(crate) struct LivenessSocket(UnixStream);

impl LivenessSocket {
    /// Makes the socket non-blocking.
    pub(crate) fn new(socket: OwnedFd) -> io::Result<Self> {
        let socket = UnixStream::from(socket);
        socket.set_nonblocking(true)?;
        Ok(Self(socket))
    }

    /// Answers what has come, by a byte: the event loop runs. Returns whether the process of the admin endpoint is alive.
    pub(crate) fn answer(&mut self) -> bool {
        match self.0.read(&mut [0; MAX_REQUESTS]) {
            Ok(0) => false,
            Ok(_) => {
                // If it fails, that process does not read. The next read reports whether it has exited.
                let _ = self.0.write(ANSWER);
                true
            }
            Err(error) => matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
        }
    }
}

impl AsFd for LivenessSocket {
    /// Readable when there is a request, or once that process has exited.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The requests that one answer is for: a byte each.
const MAX_REQUESTS: usize = 64;
const ANSWER: &[u8] = b"+";
