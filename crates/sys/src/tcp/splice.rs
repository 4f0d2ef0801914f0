//! splice(2): a pipe as a buffer in the kernel; bytes move from socket to socket without a copy to user space.

use std::os::fd::{AsFd, OwnedFd};

use rustix::pipe::{PipeFlags, SpliceFlags, pipe_with, splice};

use crate::{NameCall, Result};

/// A non-blocking pipe, for one direction of one connection at a time.
#[derive(Debug)]
pub struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
}

impl Pipe {
    /// Opens a pipe of the default size (16 pages' worth of references, 64 KiB; pipe(7)).
    ///
    /// It is never grown: above `pipe-user-pages-soft` an unprivileged process may not, and a
    /// relay that depends on larger pipes stops working at its 33rd connection.
    pub fn new() -> Result<Self> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).call("pipe2(2)")?;
        Ok(Self { read, write })
    }

    /// Moves up to `limit` bytes from `socket` into the pipe (splice(2)). `Ok(0)` is the end of the
    /// stream.
    ///
    /// # Errors
    ///
    /// EAGAIN: the socket is empty *or* the pipe has no slot left, which only a caller that knows the pipe to be empty can rule
    /// out. EINVAL where the kernel can't splice from the socket. ECONNRESET and ETIMEDOUT of the connection.
    pub fn fill_from(&self, socket: impl AsFd, limit: usize) -> std::io::Result<usize> {
        Ok(splice(socket, None, &self.write, None, limit, FLAGS)?)
    }

    /// Moves up to `limit` bytes from the pipe into `socket`.
    ///
    /// # Errors
    ///
    /// EAGAIN: the socket's send buffer is full, provided that the pipe is not empty. EPIPE and ECONNRESET of the
    /// connection.
    pub fn drain_into(&self, socket: impl AsFd, limit: usize) -> std::io::Result<usize> {
        Ok(splice(&self.read, None, socket, None, limit, FLAGS)?)
    }
}

const FLAGS: SpliceFlags = SpliceFlags::MOVE.union(SpliceFlags::NONBLOCK);
