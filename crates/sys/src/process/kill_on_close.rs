//! A dead man's switch: when nobody is left who would end certain processes, the kernel kills them.
//!
//! Each [`Hold`] has an end of one pipe to write to. When the last is closed, however its process ended, the
//! kernel signals those who could have read from the pipe (O_ASYNC, open(2)). Which signal, and to whom, is ours
//! to say (F_SETSIG and F_SETOWN, fcntl(2)): SIGKILL, to a process that is to end. Nothing is ever written.
//!
//! The ends to read from must still be open at that moment, and nobody promises in which order the kernel closes
//! what a killed process had open. So they lie in the queue of a socket of the hold's (SCM_RIGHTS, unix(7)). What
//! lies there is let go of when the socket is closed, one step after all that is closed together with it.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags, fcntl_setfl, open};
use rustix::pipe::{PipeFlags, pipe_with};

use crate::ipc::fd_passing;
use crate::process::pidfd::Process;
use crate::{NameCall, Result};

/// Who is to be killed.
#[derive(Debug)]
pub struct DeadMan {
    pipe: OwnedFd,
    charges: Vec<Charge>,
    /// What a charge's end goes into, one for each hold.
    queues: Vec<OwnedFd>,
}

/// A process that is to be killed, and the end of the pipe that stands for it.
#[derive(Debug)]
struct Charge {
    pid: u32,
    process: Process,
    end: OwnedFd,
}

/// As long as one is open in any process, nobody is killed. For the life of its process.
#[derive(Debug)]
pub struct Hold {
    // The first to be closed where it is dropped.
    pipe: OwnedFd,
    queue: OwnedFd,
}

impl DeadMan {
    /// With nobody to kill.
    pub fn new() -> Result<Self> {
        let (pipe, _) = pipe_with(PipeFlags::CLOEXEC).call("pipe2(2)")?;
        Ok(Self {
            pipe,
            charges: Vec::new(),
            queues: Vec::new(),
        })
    }

    /// Another hold, for this process or one that is forked. What its process has open of `last` is closed after
    /// the others have been killed: so they don't see that it is.
    pub fn hold(&mut self, last: Option<BorrowedFd<'_>>) -> Result<Hold> {
        let (ours, queue) = fd_passing::line()?;
        // Nobody reads from it, so it may be full one day.
        rustix::io::ioctl_fionbio(&ours, true).call("ioctl(FIONBIO)")?;
        if last.is_some() {
            fd_passing::send(&ours, 0, last)?;
        }
        // As many as there is room for.
        let ends = self.charges.iter().map(|charge| charge.end.as_fd());
        let _ = ends
            .map(|end| fd_passing::send(&ours, 0, Some(end)))
            .find(Result::is_err);
        self.queues.push(ours);
        let pipe = self.another_end(OFlags::WRONLY)?;
        Ok(Hold { pipe, queue })
    }

    /// Whether this process is to be killed.
    pub fn has(&self, pid: u32) -> bool {
        let it = self.charges.iter().find(|charge| charge.pid == pid);
        it.is_some_and(|charge| !charge.process.has_ended())
    }

    /// Has this process killed too. A number can become another's until it is held here, so `is_it` is asked
    /// afterwards: whether the process that is meant still lives.
    ///
    /// # Errors
    ///
    /// ESRCH where there is none; EAGAIN or ETOOMANYREFS where there is no room, which is for some 200 that live.
    pub fn charge(&mut self, pid: u32, is_it: impl FnOnce() -> bool) -> Result<()> {
        let process = Process::open(pid)?;
        let ended = |charge: &Charge| charge.process.has_ended();
        let end = match self.charges.iter().position(ended) {
            Some(free) => self.charges.swap_remove(free).end,
            None => self.new_end()?,
        };
        set_owner(&end, pid)?;
        let pid = if is_it() { pid } else { NOBODY };
        if pid == NOBODY {
            set_owner(&end, NOBODY)?;
        }
        self.charges.push(Charge { pid, process, end });
        Ok(())
    }

    /// An end that kills nobody yet, in every hold.
    fn new_end(&mut self) -> Result<OwnedFd> {
        let end = self.another_end(OFlags::RDONLY)?;
        let kill = libc::SIGKILL.cast_unsigned();
        set(&end, F_SETSIG, kill).call("fcntl(F_SETSIG)")?;
        fcntl_setfl(&end, OFlags::NONBLOCK | OFlags::ASYNC).call("fcntl(F_SETFL)")?;
        let mut room = Ok(());
        self.queues.retain(
            |queue| match fd_passing::send(queue, 0, Some(end.as_fd())) {
                // The hold is gone.
                Err(error) if error.errno() == Some(libc::EPIPE) => false,
                Err(error) => {
                    room = Err(error);
                    true
                }
                Ok(()) => true,
            },
        );
        room.map(|()| end)
    }

    /// Not a duplicate: it is closed by itself, and has an owner of its own.
    fn another_end(&self, access: OFlags) -> Result<OwnedFd> {
        let path = format!("/proc/self/fd/{}", self.pipe.as_raw_fd());
        let flags = access | OFlags::NONBLOCK | OFlags::CLOEXEC;
        open(path, flags, Mode::empty()).call("open(/proc/self/fd/N)")
    }
}

/// By fork(2): the child keeps both, and its parent lets them go.
impl From<Hold> for [OwnedFd; 2] {
    fn from(hold: Hold) -> Self {
        [hold.pipe, hold.queue]
    }
}

impl From<[OwnedFd; 2]> for Hold {
    fn from([pipe, queue]: [OwnedFd; 2]) -> Self {
        Self { pipe, queue }
    }
}

fn set_owner(end: &OwnedFd, pid: u32) -> Result<()> {
    set(end, libc::F_SETOWN, pid).call("fcntl(F_SETOWN)")
}

fn set(fd: &OwnedFd, command: libc::c_int, value: u32) -> io::Result<()> {
    // SAFETY: these commands take an integer and touch no memory.
    match unsafe { libc::fcntl(fd.as_raw_fd(), command, value) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// From `asm-generic/fcntl.h`; the libc crate does not have it for every C library.
const F_SETSIG: libc::c_int = 10;
const NOBODY: u32 = 0;

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Child, Command};
    use std::time::Duration;

    use super::*;
    use crate::event::poll::wait_readable;

    fn sleeper() -> (Child, Process) {
        let child = Command::new("sleep").arg("60").spawn().unwrap();
        let process = Process::open(child.id()).unwrap();
        (child, process)
    }

    #[track_caller]
    fn is_killed((mut child, process): (Child, Process)) {
        wait_readable([process.as_fd()], Some(Duration::from_secs(10))).unwrap();
        let status = child.try_wait().unwrap();
        assert_eq!(
            status.and_then(|status| status.signal()),
            Some(libc::SIGKILL)
        );
    }

    #[test]
    fn with_the_last_hold_all_charges_are_killed() {
        let mut dead_man = DeadMan::new().unwrap();
        let first = dead_man.hold(None).unwrap();
        let (early, late, not_meant) = (sleeper(), sleeper(), sleeper());
        dead_man.charge(early.0.id(), || true).unwrap();
        let second = dead_man.hold(None).unwrap();
        dead_man.charge(late.0.id(), || true).unwrap();
        dead_man.charge(not_meant.0.id(), || false).unwrap();
        drop(first);
        assert!(dead_man.has(early.0.id()) && dead_man.has(late.0.id()));
        assert!(!dead_man.has(not_meant.0.id()));
        drop(second);
        is_killed(early);
        is_killed(late);
        let (mut child, process) = not_meant;
        assert!(!process.has_ended());
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// The queue's room is for those that live.
    #[test]
    fn a_place_is_used_again() {
        let mut dead_man = DeadMan::new().unwrap();
        let hold = dead_man.hold(None).unwrap();
        let (mut gone, _) = sleeper();
        dead_man.charge(gone.id(), || true).unwrap();
        gone.kill().unwrap();
        gone.wait().unwrap();
        let next = sleeper();
        dead_man.charge(next.0.id(), || true).unwrap();
        assert_eq!(dead_man.charges.len(), 1);
        drop(hold);
        is_killed(next);
    }
}
