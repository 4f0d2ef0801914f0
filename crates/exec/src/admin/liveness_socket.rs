//! The end of the liveness socket of a supervisor, or of the agent. By it the process of the admin endpoint ([`super`])
//! asks whether the event loop runs and learns of reloads, and each of the two processes notices that the other has exited.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use crate::stderr_line::try_write_line;

/// The end of a supervisor, or of the agent.
#[derive(Debug)]
pub(crate) struct LivenessSocket(UnixStream);

impl LivenessSocket {
    /// Makes the socket non-blocking.
    pub(crate) fn new(socket: OwnedFd) -> io::Result<Self> {
        let socket = UnixStream::from(socket);
        socket.set_nonblocking(true)?;
        Ok(Self(socket))
    }

    /// Answers the requests that were received, if any, by one byte. `None` if the process of the admin endpoint has exited.
    pub(crate) fn answer_or_close(mut self) -> Option<Self> {
        let is_alive = self.answer();
        if !is_alive {
            try_write_line(
                "peername: the process of the admin endpoint has exited: the admin endpoint no longer answers",
            );
        }
        is_alive.then_some(self)
    }

    /// Returns whether the process of the admin endpoint is alive.
    fn answer(&mut self) -> bool {
        match self.0.read(&mut [0; MAX_REQUESTS]) {
            Ok(0) => false,
            Ok(_) => {
                // This fails if the process does not read. Whether it has exited is reported by the next read.
                let _ = self.0.write(ANSWER);
                true
            }
            Err(error) => matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
        }
    }

    /// Reports a reload, by one byte. The report is lost if the process of the admin endpoint does not read.
    pub(crate) fn report_reload(&mut self, is_applied: bool) {
        let byte = if is_applied { RELOADED } else { RELOAD_REFUSED };
        let _ = self.0.write(&[byte]);
    }
}

impl AsFd for LivenessSocket {
    /// Readable when there is a request, or once the process of the admin endpoint has exited.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The maximum number of requests, a byte each, for one answer.
const MAX_REQUESTS: usize = 64;
const ANSWER: &[u8] = b"+";
/// The byte by which an agent reports that it has reloaded its policies.
pub const RELOADED: u8 = b'R';
/// The byte by which an agent reports that it has refused a reload.
pub const RELOAD_REFUSED: u8 = b'X';
