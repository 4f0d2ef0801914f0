//! A dead man's switch: when nobody is left who would end certain processes, the kernel kills them.
//!
//! Each [`KillInhibitor`] has an end of one pipe to write to. When the last is closed, however its process ended, the
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
use crate::process::pidfd::PidFd;
use crate::{NameCall, Result};

/// Who is to be killed.
#[derive(Debug)]
pub struct KillOnClose {
    pipe: OwnedFd,
    targets: Vec<Target>,
    /// What a target's end goes into, one for each hold.
    queues: Vec<OwnedFd>,
}

/// A process that is to be killed, and the end of the pipe that stands for it.
#[derive(Debug)]
struct Target {
    pid: u32,
    process: PidFd,
    end: OwnedFd,
}

/// As long as one is open in any process, nobody is killed. For the life of its process.
#[derive(Debug)]
pub struct KillInhibitor {
    // The first to be closed where it is dropped.
    pipe: OwnedFd,
    queue: OwnedFd,
}

impl KillOnClose {
    /// With nobody to kill.
    pub fn new() -> Result<Self> {
        let (pipe, _) = pipe_with(PipeFlags::CLOEXEC).call("pipe2(2)")?;
        Ok(Self {
            pipe,
            targets: Vec::new(),
            queues: Vec::new(),
        })
    }

    /// Another hold, for this process or one that is forked. What its process has open of `last` is closed after
    /// the others have been killed: so they don't see that it is.
    pub fn new_inhibitor(&mut self, last: Option<BorrowedFd<'_>>) -> Result<KillInhibitor> {
        let (ours, queue) = fd_passing::seqpacket_pair()?;
        // Nobody reads from it, so it may be full one day.
        rustix::io::ioctl_fionbio(&ours, true).call("ioctl(FIONBIO)")?;
        if last.is_some() {
            fd_passing::send_word(&ours, 0, last)?;
        }
        // As many as there is room for.
        let ends = self.targets.iter().map(|target| target.end.as_fd());
        let _ = ends
            .map(|end| fd_passing::send_word(&ours, 0, Some(end)))
            .find(Result::is_err);
        self.queues.push(ours);
        let pipe = self.another_end(OFlags::WRONLY)?;
        Ok(KillInhibitor { pipe, queue })
    }

    /// Whether this process is to be killed.
    pub fn contains(&self, pid: u32) -> bool {
        let it = self.targets.iter().find(|target| target.pid == pid);
        it.is_some_and(|target| !target.process.has_exited())
    }

    /// Has this process killed too. A number can become another's until it is held here, so `is_it` is asked
    /// afterwards: whether the process that is meant still lives.
    ///
    /// # Errors
    ///
    /// ESRCH where there is none; EAGAIN or ETOOMANYREFS where there is no room, which is for some 200 that live.
    pub fn add(&mut self, pid: u32, is_it: impl FnOnce() -> bool) -> Result<()> {
        let process = PidFd::open(pid)?;
        let ended = |target: &Target| target.process.has_exited();
        let end = match self.targets.iter().position(ended) {
            Some(free) => self.targets.swap_remove(free).end,
            None => self.new_end()?,
        };
        set_owner(&end, pid)?;
        let pid = if is_it() { pid } else { NO_OWNER };
        if pid == NO_OWNER {
            set_owner(&end, NO_OWNER)?;
        }
        self.targets.push(Target { pid, process, end });
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
            |queue| match fd_passing::send_word(queue, 0, Some(end.as_fd())) {
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
impl From<KillInhibitor> for [OwnedFd; 2] {
    fn from(hold: KillInhibitor) -> Self {
        [hold.pipe, hold.queue]
    }
}

impl From<[OwnedFd; 2]> for KillInhibitor {
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
const NO_OWNER: u32 = 0;

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Child, Command};
    use std::time::Duration;

    use super::*;
    use crate::event::wait_readable;

    fn sleeper() -> (Child, PidFd) {
        let child = Command::new("sleep").arg("60").spawn().unwrap();
        let process = PidFd::open(child.id()).unwrap();
        (child, process)
    }

    #[track_caller]
    fn assert_killed((mut child, process): (Child, PidFd)) {
        wait_readable([process.as_fd()], Some(Duration::from_secs(10))).unwrap();
        let status = child.try_wait().unwrap();
        assert_eq!(
            status.and_then(|status| status.signal()),
            Some(libc::SIGKILL)
        );
    }

    #[test]
    fn with_the_last_hold_all_charges_are_killed() {
        let mut kill_on_close = KillOnClose::new().unwrap();
        let first = kill_on_close.new_inhibitor(None).unwrap();
        let (early, late, not_meant) = (sleeper(), sleeper(), sleeper());
        kill_on_close.add(early.0.id(), || true).unwrap();
        let second = kill_on_close.new_inhibitor(None).unwrap();
        kill_on_close.add(late.0.id(), || true).unwrap();
        kill_on_close.add(not_meant.0.id(), || false).unwrap();
        drop(first);
        assert!(kill_on_close.contains(early.0.id()) && kill_on_close.contains(late.0.id()));
        assert!(!kill_on_close.contains(not_meant.0.id()));
        drop(second);
        assert_killed(early);
        assert_killed(late);
        let (mut child, process) = not_meant;
        assert!(!process.has_exited());
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// The queue's room is for those that live.
    #[test]
    fn a_place_is_used_again() {
        let mut kill_on_close = KillOnClose::new().unwrap();
        let hold = kill_on_close.new_inhibitor(None).unwrap();
        let (mut gone, _) = sleeper();
        kill_on_close.add(gone.id(), || true).unwrap();
        gone.kill().unwrap();
        gone.wait().unwrap();
        let next = sleeper();
        kill_on_close.add(next.0.id(), || true).unwrap();
        assert_eq!(kill_on_close.targets.len(), 1);
        drop(hold);
        assert_killed(next);
    }
}
