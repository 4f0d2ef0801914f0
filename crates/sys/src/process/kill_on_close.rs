//! A dead man's switch: the kernel kills the target processes when the last supervisor has exited, even by SIGKILL.
//!
//! Each [`KillInhibitor`] holds a write end of one pipe. When the last write end is closed, however its process exited,
//! the kernel signals the owners of the read ends (O_ASYNC, open(2)). Signal and owner of each read end can be chosen:
//! here SIGKILL (F_SETSIG, fcntl(2)) and a target (F_SETOWN). Nothing is ever written to the pipe.
//!
//! The read ends must still be open at that moment, and the kernel guarantees no order in which it closes the descriptors
//! of a killed process. So the read ends are queued in a socket of the inhibitor (SCM_RIGHTS, unix(7)). Queued file
//! descriptors are closed after the process's own.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::fs::{Mode, OFlags, fcntl_setfl, open};
use rustix::pipe::{PipeFlags, pipe_with};

use crate::event::wait_readable;
use crate::ipc::fd_passing;
use crate::process::pidfd::PidFd;
use crate::{NameCall, Result};

/// The switch, with its targets. This process inhibits it for as long as it keeps the switch.
#[derive(Debug)]
pub struct KillOnClose {
    targets: Vec<Target>,
    /// Read ends that process groups own.
    groups: Vec<OwnedFd>,
    /// Sockets to queue read ends in, one for each inhibitor.
    queues: Vec<OwnedFd>,
    /// There is one from the start: without any, the kernel signals the targets at each read end that is closed.
    ours: KillInhibitor,
}

/// A process to kill, and the read end that it owns.
#[derive(Debug)]
struct Target {
    pid: u32,
    process: PidFd,
    end: OwnedFd,
}

/// While an inhibitor is open in any process, no target is killed. Keep it for the life of its process.
#[derive(Debug)]
pub struct KillInhibitor {
    // Closed first when dropped.
    pipe: OwnedFd,
    queue: OwnedFd,
}

impl KillOnClose {
    /// Opens a switch without targets. This process closes its copy of `last` only after the targets have been killed,
    /// so that they never see it closed.
    pub fn new(last: Option<BorrowedFd<'_>>) -> Result<Self> {
        let (_, pipe) = pipe_with(PipeFlags::CLOEXEC).call("pipe2(2)")?;
        let [to_queue, queue] = queue_for_read_ends(last)?;
        Ok(Self {
            targets: Vec::new(),
            groups: Vec::new(),
            queues: vec![to_queue],
            ours: KillInhibitor { pipe, queue },
        })
    }

    /// Opens another inhibitor, for a process that this one forks; `last` as for [`KillOnClose::new`].
    ///
    /// # Errors
    ///
    /// EMFILE or ENFILE; ENOENT without /proc.
    pub fn new_inhibitor(&mut self, last: Option<BorrowedFd<'_>>) -> Result<KillInhibitor> {
        let pipe = self.another_end(OFlags::WRONLY)?;
        let [to_queue, queue] = queue_for_read_ends(last)?;
        // Queues as many read ends as fit.
        let targets = self.targets.iter().map(|target| &target.end);
        let _ = targets
            .chain(&self.groups)
            .map(OwnedFd::as_fd)
            .map(|end| fd_passing::send_word(&to_queue, 0, Some(end)))
            .find(Result::is_err);
        self.queues.retain(is_open);
        self.queues.push(to_queue);
        Ok(KillInhibitor { pipe, queue })
    }

    /// Whether this process is a live target.
    pub fn contains(&self, pid: u32) -> bool {
        let it = self.targets.iter().find(|target| target.pid == pid);
        it.is_some_and(|target| !target.process.has_exited())
    }

    /// Adds a target. The process id may be reused until its pidfd is open. So `is_it` is called afterwards, and
    /// returns whether the intended process still lives.
    ///
    /// # Errors
    ///
    /// ESRCH where there is no such process; EAGAIN or ETOOMANYREFS where the queue is full: it holds some 200 live targets.
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

    /// Adds the process group that this process leads, with all that will join it; none if it leads none, or beyond
    /// `MAX_GROUPS`. Every process of the group must be one that may be killed.
    /// `is_it` as for [`KillOnClose::add`].
    ///
    /// # Errors
    ///
    /// ESRCH where there is no such process; EAGAIN or ETOOMANYREFS where the queue is full.
    pub fn add_group_of(&mut self, leader: u32, is_it: impl FnOnce() -> bool) -> Result<()> {
        if self.groups.len() >= MAX_GROUPS || !leads_group(leader) {
            return Ok(());
        }
        let end = self.new_end()?;
        // Negative: a process group (fcntl(2)).
        set_owner(&end, leader.cast_signed().wrapping_neg().cast_unsigned())?;
        if !is_it() {
            set_owner(&end, NO_OWNER)?;
        }
        self.groups.push(end);
        Ok(())
    }

    /// Opens a read end without owner and queues it in every inhibitor.
    fn new_end(&mut self) -> Result<OwnedFd> {
        let end = self.another_end(OFlags::RDONLY)?;
        let kill = libc::SIGKILL.cast_unsigned();
        set(&end, F_SETSIG, kill).call("fcntl(F_SETSIG)")?;
        fcntl_setfl(&end, OFlags::NONBLOCK | OFlags::ASYNC).call("fcntl(F_SETFL)")?;
        let mut queued = Ok(());
        self.queues.retain(
            |queue| match fd_passing::send_word(queue, 0, Some(end.as_fd())) {
                // The inhibitor is closed.
                Err(error) if error.errno() == Some(libc::EPIPE) => false,
                Err(error) => {
                    queued = Err(error);
                    true
                }
                Ok(()) => true,
            },
        );
        queued.map(|()| end)
    }

    /// Opens another end of the pipe. Not a duplicate: it is a separate open file, with an owner of its own.
    fn another_end(&self, access: OFlags) -> Result<OwnedFd> {
        let path = format!("/proc/self/fd/{}", self.ours.pipe.as_raw_fd());
        let flags = access | OFlags::NONBLOCK | OFlags::CLOEXEC;
        open(path, flags, Mode::empty()).call("open(/proc/self/fd/N)")
    }
}

/// To pass the inhibitor to a child by fork(2): the child keeps both descriptors, the parent drops its own.
impl From<KillInhibitor> for [OwnedFd; 2] {
    fn from(inhibitor: KillInhibitor) -> Self {
        [inhibitor.pipe, inhibitor.queue]
    }
}

impl From<[OwnedFd; 2]> for KillInhibitor {
    fn from([pipe, queue]: [OwnedFd; 2]) -> Self {
        Self { pipe, queue }
    }
}

/// Opens a pair of sockets: read ends that are sent to the first stay open as long as the second. So does `last`.
fn queue_for_read_ends(last: Option<BorrowedFd<'_>>) -> Result<[OwnedFd; 2]> {
    let (to_queue, queue) = fd_passing::seqpacket_pair()?;
    // It is never read from, so it may fill up.
    rustix::io::ioctl_fionbio(&to_queue, true).call("ioctl(FIONBIO)")?;
    if last.is_some() {
        fd_passing::send_word(&to_queue, 0, last)?;
    }
    Ok([to_queue, queue])
}

/// Whether the inhibitor with the other end of this socket is open, as far as is known. It sends nothing.
fn is_open(to_queue: &OwnedFd) -> bool {
    !matches!(
        wait_readable([to_queue.as_fd()], Some(Duration::ZERO)),
        Ok(true)
    )
}

/// Whether this process leads its process group (getpgid(2)).
fn leads_group(pid: u32) -> bool {
    // Not rustix's, which panics at the 0 of a group outside of the PID namespace.
    // SAFETY: the call takes an integer and touches no memory. 0 would be this process.
    pid != 0 && unsafe { libc::getpgid(pid.cast_signed()) } == pid.cast_signed()
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
/// Leaves space in the queues for targets.
const MAX_GROUPS: usize = 32;

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Child, Command};

    use super::*;

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
    fn closing_the_last_inhibitor_kills_all_targets() {
        let mut kill_on_close = KillOnClose::new(None).unwrap();
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
        assert!(!early.1.has_exited() && !late.1.has_exited());
        drop(kill_on_close);
        assert_killed(early);
        assert_killed(late);
        let (mut child, process) = not_meant;
        assert!(!process.has_exited());
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// The queue's capacity limits live targets.
    #[test]
    fn the_slot_of_an_exited_target_is_reused() {
        let mut kill_on_close = KillOnClose::new(None).unwrap();
        let (mut gone, _) = sleeper();
        kill_on_close.add(gone.id(), || true).unwrap();
        gone.kill().unwrap();
        gone.wait().unwrap();
        let next = sleeper();
        kill_on_close.add(next.0.id(), || true).unwrap();
        assert_eq!(kill_on_close.targets.len(), 1);
        drop(kill_on_close);
        assert_killed(next);
    }

    /// A program may try to start a monitor at every accept(2).
    #[test]
    fn closed_inhibitors_take_no_descriptors() {
        let mut kill_on_close = KillOnClose::new(None).unwrap();
        for _ in 0..10 {
            kill_on_close.new_inhibitor(None).unwrap();
        }
        assert_eq!(kill_on_close.queues.len(), 2);
    }
}
