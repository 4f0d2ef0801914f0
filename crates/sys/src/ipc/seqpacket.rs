//! SOCK_SEQPACKET sockets with a path (unix(7)): messages keep their boundaries and carry descriptors
//! ([`fd_passing`](super::fd_passing)).

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen,
    socket_with,
};

use crate::socket::get_option;
use crate::{NameCall, Result};

/// Listens at `path`. A socket at that path is replaced, so check by [`connect_to`] that no process listens there. The
/// permissions of the directory decide which users may connect: check the peers ([`peer_user`]).
///
/// # Errors
///
/// EACCES or ENOENT for the directory, EADDRINUSE for another kind of file, ENAMETOOLONG for a path above 107 bytes.
pub fn listen_at(path: &Path) -> Result<OwnedFd> {
    let socket = open()?;
    if fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket()) {
        let _ = fs::remove_file(path);
    }
    let address = SocketAddrUnix::new(path).call("bind(2)")?;
    bind(&socket, &address).call("bind(2)")?;
    listen(&socket, BACKLOG).call("listen(2)")?;
    Ok(socket)
}

/// Connects to the socket at `path`.
///
/// # Errors
///
/// ECONNREFUSED or ENOENT: nothing listens there. EACCES.
pub fn connect_to(path: &Path) -> Result<OwnedFd> {
    let socket = open()?;
    let address = SocketAddrUnix::new(path).call("connect(2)")?;
    connect(&socket, &address).call("connect(2)")?;
    Ok(socket)
}

/// Accepts a connection.
pub fn accept_from(listener: impl AsFd) -> Result<OwnedFd> {
    accept_with(listener, SocketFlags::CLOEXEC).call("accept4(2)")
}

/// The user of the process at the other end, at the time when it connected (SO_PEERCRED).
pub fn peer_user(socket: impl AsFd) -> Result<u32> {
    // Not rustix's: that fails for a process of another PID namespace, which has the number 0 here.
    // SAFETY: a ucred has no invalid bits.
    let peer: libc::ucred = unsafe { get_option(socket, libc::SOL_SOCKET, libc::SO_PEERCRED) }
        .call("getsockopt(SO_PEERCRED)")?;
    Ok(peer.uid)
}

fn open() -> Result<OwnedFd> {
    let (unix, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    socket_with(unix, kind, SocketFlags::CLOEXEC, None).call("socket(2)")
}

/// Connections that may wait for accept(2).
const BACKLOG: i32 = 16;
