//! Communication between processes: passing descriptors, inherited listening sockets, shared memory.

pub mod fd_passing;
pub mod listen_fds;
pub mod shared_memory;

use std::os::fd::AsFd;

use rustix::net::sockopt::socket_peercred;

use crate::{NameCall, Result};

/// The process that has opened the other end of a Unix socket (SO_PEERCRED, unix(7)): the one that has called listen(2),
/// connect(2) or socketpair(2). 0 where it is in a PID namespace that this process can't see.
///
/// # Errors
///
/// Those of getsockopt(2): not a connected Unix socket.
pub fn peer_process(socket: impl AsFd) -> Result<u32> {
    let peer = socket_peercred(socket).call("getsockopt(SO_PEERCRED)")?;
    Ok(peer.pid.as_raw_pid().cast_unsigned())
}
