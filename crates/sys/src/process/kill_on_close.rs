//! A dead man's switch: the kernel kills a process when the process that holds the switch has exited, even by SIGKILL.
//!
//! The switch holds the write end of a pipe. When that is closed, however its process exited, the kernel signals the owner of
//! the read end (O_ASYNC, open(2)). Signal and owner can be chosen: here SIGKILL (F_SETSIG, fcntl(2)) and the target
//! (F_SETOWN). Nothing is ever written to the pipe.
//!
//! The read end must still be open at that moment, and the kernel guarantees no order in which it closes the descriptors of a
//! killed process. So the read end is queued in a socket of the switch (SCM_RIGHTS, unix(7)). Queued file descriptors are
//! closed after the process's own.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::{OFlags, fcntl_setfl};
use rustix::pipe::{PipeFlags, pipe_with};

use crate::error::checked;
use crate::ipc::fd_passing;
use crate::process::pidfd::PidFd;
use crate::{NameCall, Result};

/// Kills its target when dropped, and when its process exits. Keep it for the life of the process.
#[derive(Debug)]
pub struct KillOnClose {
    // Closed first when dropped.
    _pipe: OwnedFd,
    _queue: OwnedFd,
}

impl KillOnClose {
    /// Opens a switch for the process with this id. The id may have been reused, which `process` reveals.
    ///
    /// # Errors
    ///
    /// EMFILE or ENFILE; ESRCH once the process has exited.
    pub fn new(pid: u32, process: &PidFd) -> Result<Self> {
        let (read_end, pipe) = pipe_with(PipeFlags::CLOEXEC).call("pipe2(2)")?;
        let (to_queue, queue) = fd_passing::seqpacket_pair()?;
        fd_passing::send_word(&to_queue, 0, Some(read_end.as_fd()))?;
        fcntl_int(&read_end, F_SETSIG, libc::SIGKILL.cast_unsigned()).call("fcntl(F_SETSIG)")?;
        fcntl_int(&read_end, libc::F_SETOWN, pid).call("fcntl(F_SETOWN)")?;
        if process.has_exited() {
            return Err(io::Error::from_raw_os_error(libc::ESRCH)).call("fcntl(F_SETOWN)");
        }
        // The last step: from here on closing the pipe kills the owner.
        fcntl_setfl(&read_end, OFlags::ASYNC).call("fcntl(F_SETFL)")?;
        Ok(Self {
            _pipe: pipe,
            _queue: queue,
        })
    }
}

fn fcntl_int(fd: &OwnedFd, command: libc::c_int, value: u32) -> io::Result<()> {
    // SAFETY: these commands take an integer and touch no memory.
    checked(unsafe { libc::fcntl(fd.as_raw_fd(), command, value) }).map(drop)
}

/// From `asm-generic/fcntl.h`; the libc crate does not have it for every C library.
const F_SETSIG: libc::c_int = 10;

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    use super::*;

    #[test]
    fn closing_the_switch_kills_its_target() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let process = PidFd::open(child.id()).unwrap();
        let kill_on_close = KillOnClose::new(child.id(), &process).unwrap();
        assert!(!process.has_exited());
        drop(kill_on_close);
        assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
    }

    /// The id of a process that has exited may belong to another one by now.
    #[test]
    fn a_process_with_a_reused_id_is_not_killed() {
        let mut exited = Command::new("true").spawn().unwrap();
        let process = PidFd::open(exited.id()).unwrap();
        exited.wait().unwrap();
        let mut other = Command::new("sleep").arg("60").spawn().unwrap();
        let error = KillOnClose::new(other.id(), &process).unwrap_err();
        assert_eq!(error.errno(), Some(libc::ESRCH));
        assert!(other.try_wait().unwrap().is_none());
        other.kill().unwrap();
        other.wait().unwrap();
    }
}
