//! connect(2) and bind(2) with an address of any family, as bytes (sockaddr(3type)), on a socket that another process has
//! open, too.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::net::sockopt;

use crate::{NameCall, Result};

/// Connects the socket without waiting, also if it is a blocking one: O_NONBLOCK is set for the call only.
///
/// # Errors
///
/// EINPROGRESS (TCP) or EAGAIN (Unix) where the call would block; else those of connect(2).
pub fn connect(socket: impl AsFd, address: &[u8]) -> io::Result<()> {
    let flags = fcntl_getfl(&socket)?;
    let blocking = !flags.contains(OFlags::NONBLOCK);
    if blocking {
        fcntl_setfl(&socket, flags | OFlags::NONBLOCK)?;
    }
    // SAFETY: the kernel reads the address, which lives across the call, up to its length.
    let rc = unsafe {
        libc::connect(
            socket.as_fd().as_raw_fd(),
            address.as_ptr().cast(),
            address.len() as libc::socklen_t,
        )
    };
    let result = if rc == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    };
    if blocking {
        fcntl_setfl(&socket, flags)?;
    }
    result
}

/// Binds the socket.
///
/// # Errors
///
/// Those of bind(2).
pub fn bind(socket: impl AsFd, address: &[u8]) -> io::Result<()> {
    // SAFETY: the kernel reads the address, which lives across the call, up to its length.
    let rc = unsafe {
        libc::bind(
            socket.as_fd().as_raw_fd(),
            address.as_ptr().cast(),
            address.len() as libc::socklen_t,
        )
    };
    if rc == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Whether calls on the socket wait (no O_NONBLOCK).
pub fn is_blocking(socket: impl AsFd) -> bool {
    fcntl_getfl(socket).is_ok_and(|flags| !flags.contains(OFlags::NONBLOCK))
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
/// ENOENT or EINVAL where the socket has no path.
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
