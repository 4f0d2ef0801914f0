//! connect(2) and bind(2) with an address of any family, as bytes (sockaddr(3type)), on a socket that another process has
//! open, too.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use rustix::fs::{OFlags, fcntl_getfl};
use rustix::io::ioctl_fionbio;
use rustix::net::{AddressFamily, SocketType, sockopt};

use crate::error::checked;
use crate::ipc::foreign_fd::within_limit;
use crate::{Errno, NameCall, Result};

/// The result of [`connect`].
#[derive(Debug)]
pub enum Connected {
    /// connect(2) has returned this; on a non-blocking socket also EINPROGRESS or EAGAIN.
    Now(io::Result<()>),
    /// connect(2) would block: the socket is a blocking one.
    Blocks,
}

/// Connects the socket without waiting, even if it is a blocking one. For that, O_NONBLOCK is set during the call, except on a
/// datagram socket, where connect(2) never waits. If the program sets the flag meanwhile, its change is lost. If it clears the
/// flag, the call may wait, but ends in bounded time, as closing a [`ForeignFd`](crate::ipc::foreign_fd::ForeignFd) does.
///
/// # Errors
///
/// EBADF where the descriptor is closed; those of connect(2) are in the value.
pub fn connect(socket: impl AsFd, address: &[u8]) -> io::Result<Connected> {
    let flags = fcntl_getfl(&socket)?;
    if flags.contains(OFlags::NONBLOCK) || is_datagram(&socket) {
        let result = connect_once(&socket, address);
        return Ok(if is_errno(&result, Errno::INTR) {
            // Only a blocking socket waits: the program has cleared O_NONBLOCK.
            Connected::Blocks
        } else {
            Connected::Now(result)
        });
    }
    // FIONBIO changes this flag alone. fcntl(2) would write back the others, which the program may change meanwhile.
    ioctl_fionbio(&socket, true)?;
    let mut result = connect_once(&socket, address);
    if is_errno(&result, Errno::INPROGRESS) {
        // On loopback the answer has come while the first call held the socket, so TCP is connected by now.
        result = connect_once(&socket, address);
    }
    ioctl_fionbio(&socket, false)?;
    let would_block = [Errno::INPROGRESS, Errno::ALREADY, Errno::AGAIN, Errno::INTR]
        .iter()
        .any(|&errno| is_errno(&result, errno));
    Ok(if would_block {
        Connected::Blocks
    } else {
        Connected::Now(result)
    })
}

fn connect_once(socket: impl AsFd, address: &[u8]) -> io::Result<()> {
    within_limit(|| call_with_address(libc::connect, socket, address))
}

fn is_errno(result: &io::Result<()>, errno: Errno) -> bool {
    let error = result.as_ref().err();
    error.and_then(io::Error::raw_os_error) == Some(errno.raw_os_error())
}

/// Binds the socket (bind(2)).
pub fn bind(socket: impl AsFd, address: &[u8]) -> io::Result<()> {
    call_with_address(libc::bind, socket, address)
}

/// connect(2) or bind(2).
type AddressCall =
    unsafe extern "C" fn(libc::c_int, *const libc::sockaddr, libc::socklen_t) -> libc::c_int;

fn call_with_address(call: AddressCall, socket: impl AsFd, address: &[u8]) -> io::Result<()> {
    let length = address.len() as libc::socklen_t;
    // SAFETY: the kernel reads the address, which lives across the call, up to its length.
    let rc = unsafe { call(socket.as_fd().as_raw_fd(), address.as_ptr().cast(), length) };
    checked(rc).map(drop)
}

/// Binds the socket with SO_REUSEADDR, so that an earlier listener and its connections may be bound to the same port. On
/// failure, the option is restored.
pub fn bind_reusing(socket: impl AsFd, address: &[u8]) -> io::Result<()> {
    let before = sockopt::socket_reuseaddr(&socket)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    bind(&socket, address).inspect_err(|_| _ = sockopt::set_socket_reuseaddr(&socket, before))
}

/// Whether this is a datagram socket (SO_TYPE).
fn is_datagram(socket: impl AsFd) -> bool {
    sockopt::socket_type(socket).is_ok_and(|kind| kind == SocketType::DGRAM)
}

/// Whether this is a stream socket (SO_TYPE).
pub fn is_stream(socket: impl AsFd) -> bool {
    sockopt::socket_type(socket).is_ok_and(|kind| kind == SocketType::STREAM)
}

/// Whether this is a Unix socket (SO_DOMAIN).
pub fn is_unix(socket: impl AsFd) -> bool {
    sockopt::socket_domain(socket).is_ok_and(|domain| domain == AddressFamily::UNIX)
}

/// How long connect(2) waits on a blocking socket (SO_SNDTIMEO); `None` without a limit.
pub fn connect_timeout(socket: impl AsFd) -> Option<Duration> {
    sockopt::socket_timeout(socket, sockopt::Timeout::Send)
        .ok()
        .flatten()
}

/// Opens the file that a Unix socket is bound to (SIOCUNIXFILE, since Linux 4.11), whatever its path is now. Needs
/// CAP_NET_ADMIN over the socket's network namespace. The descriptor is for fstat(2) and the like (O_PATH).
///
/// # Errors
///
/// ENOENT where the socket has no path; EPERM; EMFILE.
pub fn bound_file(socket: impl AsFd) -> Result<OwnedFd> {
    // SAFETY: the command takes no argument.
    let fd = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), SIOCUNIXFILE) };
    let fd = checked(fd).call("ioctl(SIOCUNIXFILE)")?;
    // SAFETY: the kernel has just made this descriptor for us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// `SIOCPROTOPRIVATE` of `linux/sockios.h`, by `linux/un.h`.
const SIOCUNIXFILE: libc::Ioctl = 0x89e0;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn file_of_a_renamed_socket_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let (old, new) = (dir.path().join("old"), dir.path().join("new"));
        let listener = UnixListener::bind(&old).unwrap();
        std::fs::rename(&old, &new).unwrap();
        let file = bound_file(&listener).unwrap();
        let found = std::fs::File::from(file).metadata().unwrap();
        assert_eq!(found.ino(), std::fs::metadata(&new).unwrap().ino());
    }
}
