//! Sockets for the program that this process becomes: the giving side of sd_listen_fds(3).

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use rustix::io::fcntl_dupfd_cloexec;

use crate::{NameCall, Result};

/// Puts the sockets at the numbers 3, 4 … and leaves them open on exec, so that the program finds them
/// there if its environment has LISTEN_FDS (how many) and LISTEN_PID (this process).
///
/// # Errors
///
/// EBUSY when something else is open at one of these numbers: it would be closed.
pub fn leave(sockets: Vec<OwnedFd>) -> Result<()> {
    let end = FIRST + sockets.len() as RawFd;
    // Out of the way first: they may be at each other's numbers.
    let aside: Vec<_> = sockets
        .iter()
        .map(|socket| fcntl_dupfd_cloexec(socket, end).call("fcntl(F_DUPFD_CLOEXEC)"))
        .collect::<Result<_>>()?;
    drop(sockets);
    for (number, socket) in (FIRST..end).zip(&aside) {
        // SAFETY: F_GETFD and F_DUPFD take integers. That nothing is open at the number is seen before, so
        // no descriptor that somebody owns is replaced; this process has one thread at this point or
        // loses the race with an error below.
        let put = unsafe {
            if libc::fcntl(number, libc::F_GETFD) >= 0 {
                return Err(io::Error::from_raw_os_error(libc::EBUSY)).call("fcntl(F_GETFD)");
            }
            libc::fcntl(socket.as_raw_fd(), libc::F_DUPFD, number)
        };
        if put < 0 {
            return Err(io::Error::last_os_error()).call("fcntl(F_DUPFD)");
        }
        if put != number {
            return Err(io::Error::from_raw_os_error(libc::EBUSY)).call("fcntl(F_DUPFD)");
        }
    }
    Ok(())
}

/// SD_LISTEN_FDS_START.
const FIRST: RawFd = 3;
