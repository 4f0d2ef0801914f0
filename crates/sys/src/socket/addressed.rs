//! connect(2) and bind(2) with an address of any family, as bytes (sockaddr(3type)), on a socket that another process has
//! open, too.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use rustix::fs::{OFlags, fcntl_getfl};
use rustix::io::ioctl_fionbio;
use rustix::net::{AddressFamily, SocketType, sockopt};

use crate::ipc::foreign_fd::within_limit;
use crate::{Errno, NameCall, Result};

/// What became of a connection.
#[derive(Debug)]
pub enum Connected {
    /// The result of connect(2), also EINPROGRESS and EAGAIN of a non-blocking socket.
    Now(io::Result<()>),
    /// The socket is a blocking one, and the call would block.
    Blocks,
}

/// Connects the socket without waiting, also if it is a blocking one: O_NONBLOCK is set for the call only, and not on a socket of
/// datagrams, where connect(2) does not wait. If the program sets it meanwhile, that is lost. Where another process clears it, the wait is ended within a moment
/// ([`ForeignFd`](crate::ipc::foreign_fd::ForeignFd)).
///
/// # Errors
///
/// EBADF where the descriptor is closed; those of connect(2) are in the value.
pub fn connect(socket: impl AsFd, address: &[u8]) -> io::Result<Connected> {
    let flags = fcntl_getfl(&socket)?;
    if flags.contains(OFlags::NONBLOCK) || is_datagram(&socket) {
        let result = connect_once(&socket, address);
        return Ok(match is_errno(&result, Errno::INTR) {
            // It is a blocking one by now.
            true => Connected::Blocks,
            false => Connected::Now(result),
        });
    }
    // Not fcntl(2), which would write back other flags that the program changes meanwhile.
    ioctl_fionbio(&socket, true)?;
    let mut result = connect_once(&socket, address);
    if is_errno(&result, Errno::INPROGRESS) {
        // On loopback, TCP is connected by now: the answer came while the call held the socket.
        result = connect_once(&socket, address);
    }
    ioctl_fionbio(&socket, false)?;
    let waits = [Errno::INPROGRESS, Errno::ALREADY, Errno::AGAIN, Errno::INTR];
    Ok(match waits.iter().any(|&errno| is_errno(&result, errno)) {
        true => Connected::Blocks,
        false => Connected::Now(result),
    })
}

fn connect_once(socket: impl AsFd, address: &[u8]) -> io::Result<()> {
    within_limit(|| call_with_address(libc::connect, socket, address))
}

fn is_errno(result: &io::Result<()>, errno: Errno) -> bool {
    let error = result.as_ref().err();
    error.and_then(io::Error::raw_os_error) == Some(errno.raw_os_error())
}

/// Binds the socket.
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
    match rc {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Binds the socket to a port that an earlier listener and its connections may be bound to (SO_REUSEADDR). Where that fails, the
/// option is as before.
pub fn bind_reusing(socket: impl AsFd, address: &[u8]) -> io::Result<()> {
    let before = sockopt::socket_reuseaddr(&socket)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    bind(&socket, address).inspect_err(|_| _ = sockopt::set_socket_reuseaddr(&socket, before))
}

/// Whether it is a datagram socket (SO_TYPE).
fn is_datagram(socket: impl AsFd) -> bool {
    sockopt::socket_type(socket).is_ok_and(|kind| kind == SocketType::DGRAM)
}

/// Whether it is a stream socket (SO_TYPE).
pub fn is_stream(socket: impl AsFd) -> bool {
    sockopt::socket_type(socket).is_ok_and(|kind| kind == SocketType::STREAM)
}

/// Whether it is a Unix socket (SO_DOMAIN).
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
    if fd < 0 {
        return Err(io::Error::last_os_error()).call("ioctl(SIOCUNIXFILE)");
    }
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
        let dir = std::env::temp_dir().join(format!("peername-addressed-{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        let (old, new) = (dir.join("old"), dir.join("new"));
        let listener = UnixListener::bind(&old).unwrap();
        std::fs::rename(&old, &new).unwrap();
        let file = bound_file(&listener).unwrap();
        let found = std::fs::File::from(file).metadata().unwrap();
        assert_eq!(found.ino(), std::fs::metadata(&new).unwrap().ino());
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
