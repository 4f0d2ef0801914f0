//! Forks helper processes: children of this process, and daemons, which are reparented to init.

use std::ffi::CStr;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitStatus;

use rustix::process::{Pid, Signal, WaitOptions, kill_process, setpgid, waitpid};
use rustix::stdio::{dup2_stdin, dup2_stdout};

use crate::error::checked;
use crate::process::pidfd::PidFd;
use crate::{NameCall, Result};

/// Runs `work` in a daemon (double fork): its parent is init or a subreaper, and this process need not reap it. The daemon has
/// a process group of its own, so the terminal's signals don't reach it, and blocks all signals that can be blocked: a
/// service manager's signal to all processes of a service is meant for the program, not for the daemon.
///
/// The daemon stays in the session. In a session of its own, the scheduler would give it the same share of the CPUs as the
/// program (`kernel.sched_autogroup_enabled`, sched(7)).
///
/// `work` returns the exit code. The daemon inherits only standard error and the descriptors `keep`, which are passed to
/// `work`: an inherited socket would stay open for as long as the daemon runs. `work` must own no other descriptor: it would
/// close a number that is closed already, or that another file has by then.
///
/// # Errors
///
/// As [`fork`]; ENOSYS of close_range(2) before Linux 5.9; ENOENT or EACCES of /dev/null.
pub fn spawn_detached<K: AsRef<[OwnedFd]>>(keep: K, work: impl FnOnce(K) -> u8) -> Result<()> {
    let intermediate = fork(|| {
        let _ = setpgid(None, None);
        // Before the second fork, because an error is reported by the exit code of this process.
        let forked = detach_from_parent(keep.as_ref()).and_then(|()| {
            fork(|| {
                block_signals();
                work(keep)
            })
        });
        // Linux's error numbers fit into an exit code.
        let errno = forked
            .err()
            .map(|error| error.errno().unwrap_or(libc::EAGAIN));
        errno.map_or(0, |errno| u8::try_from(errno).unwrap_or(u8::MAX))
    })?;
    match wait_exit(intermediate)?.code() {
        Some(0) => Ok(()),
        errno => Err(io::Error::from_raw_os_error(errno.unwrap_or(libc::EAGAIN)))
            .call("close_range(2), open(/dev/null), chdir(/) or fork(2)"),
    }
}

/// Runs `work` in a child in the same session, with the same signals blocked, and returns its process id. The child
/// inherits only standard error and the descriptors `keep`, which are passed to `work`. `work` must own no other descriptor.
pub fn fork_child<K: AsRef<[OwnedFd]>>(keep: K, work: impl FnOnce(K) -> u8) -> Result<u32> {
    fork(|| match detach_from_parent(keep.as_ref()) {
        Ok(()) => work(keep),
        Err(_) => 1,
    })
}

/// A child of this process, with its process descriptor. Dropping this neither ends nor reaps the child.
#[derive(Debug)]
pub struct ChildProcess {
    id: u32,
    process: PidFd,
}

impl ChildProcess {
    /// Runs `work` as [`fork_child`] does.
    ///
    /// # Errors
    ///
    /// As [`fork`]. EMFILE or ENFILE of pidfd_open(2): the child is killed then.
    pub fn fork<K: AsRef<[OwnedFd]>>(keep: K, work: impl FnOnce(K) -> u8) -> Result<Self> {
        let id = fork_child(keep, work)?;
        match PidFd::open(id) {
            Ok(process) => Ok(Self { id, process }),
            Err(error) => {
                // The id is not reused before the child is reaped.
                if let Some(pid) = Pid::from_raw(id.cast_signed()) {
                    let _ = kill_process(pid, Signal::KILL);
                }
                let _ = wait_exit(id);
                Err(error)
            }
        }
    }

    /// The process descriptor.
    pub fn pidfd(&self) -> &PidFd {
        &self.process
    }

    /// Waits until the child has exited, and reaps it.
    pub fn wait(self) -> Result<ExitStatus> {
        wait_exit(self.id)
    }

    /// Kills the child, and reaps it.
    pub fn kill(self) {
        let _ = self.process.signal(Signal::KILL);
        let _ = self.wait();
    }
}

/// Runs `work` in a child that executes programs for this process, and returns the child's process id. The child keeps the
/// standard streams, the working directory, and the environment. Of the other descriptors it keeps only `keep`, which are
/// passed to `work`. `work` must own no other descriptor. The child blocks all signals that can be blocked: a signal to the
/// whole process group is meant for this process, not for the child.
pub fn fork_launcher<K: AsRef<[OwnedFd]>>(keep: K, work: impl FnOnce(K) -> u8) -> Result<u32> {
    fork(|| {
        block_signals();
        match close_above_stderr(keep.as_ref()) {
            Ok(()) => work(keep),
            Err(_) => 1,
        }
    })
}

/// Waits until a child has exited, and reaps it.
///
/// # Errors
///
/// ECHILD where `child` is no child of this process.
pub fn wait_exit(child: u32) -> Result<ExitStatus> {
    let pid = Pid::from_raw(child.cast_signed())
        .ok_or_else(|| io::Error::from_raw_os_error(libc::ECHILD))
        .call("waitpid(2)")?;
    let exited = waitpid(Some(pid), WaitOptions::empty()).call("waitpid(2)")?;
    let status = exited.map_or(0, |(_, status)| status.as_raw());
    Ok(ExitStatus::from_raw(status))
}

/// Makes the kernel send this process a signal when the thread that created it exits, even if other threads of the parent go on
/// (PR_SET_PDEATHSIG, prctl(2)). execve(2) keeps the setting, unless it gains privileges; a change of credentials clears it.
pub fn set_parent_death_signal(signal: Signal) -> Result<()> {
    rustix::process::set_parent_process_death_signal(Some(signal)).call("prctl(PR_SET_PDEATHSIG)")
}

/// Sets this thread's name, as ps(1) and /proc show it (at most 15 bytes; prctl(PR_SET_NAME)). A failure is ignored.
pub fn set_thread_name(name: &CStr) {
    let _ = rustix::thread::set_name(name);
}

/// Runs `work` in a child that inherits everything, and returns the child's process id. `work` returns the exit code.
///
/// # Errors
///
/// EBUSY when this process has several threads: the child would lack the others, but not the locks that they hold. EAGAIN or
/// ENOMEM of fork(2).
pub fn fork(work: impl FnOnce() -> u8) -> Result<u32> {
    if thread_count()? != 1 {
        return Err(io::Error::from_raw_os_error(libc::EBUSY))
            .call("fork(2), with several threads");
    }
    // SAFETY: this is the process's only thread, so no lock is held by a thread that the child lacks,
    // and the child may call whatever the parent may.
    match checked(unsafe { libc::fork() }).call("fork(2)")? {
        0 => {
            // Unwinding would continue into the parent's functions, in the child.
            let code = catch_unwind(AssertUnwindSafe(work)).unwrap_or(PANICKED);
            // SAFETY: the call takes an integer. Handlers of atexit(3) are left to the parent.
            unsafe { libc::_exit(code.into()) }
        }
        pid => Ok(pid.cast_unsigned()),
    }
}

/// Counts the threads of this process.
pub(crate) fn thread_count() -> Result<usize> {
    let tasks = fs::read_dir("/proc/self/task").call("open(/proc/self/task)")?;
    Ok(tasks.count())
}

/// Closes all descriptors but `keep` and standard error, and leaves the working directory.
fn detach_from_parent(keep: &[OwnedFd]) -> Result<()> {
    close_above_stderr(keep)?;
    let null = File::options()
        .read(true)
        .write(true)
        .open("/dev/null")
        .call("open(/dev/null)")?;
    dup2_stdin(&null).call("dup2(2)")?;
    dup2_stdout(&null).call("dup2(2)")?;
    drop(null);
    // So that this process keeps no file system busy.
    std::env::set_current_dir("/").call("chdir(/)")
}

/// Closes all descriptors but `keep` and the standard streams.
fn close_above_stderr(keep: &[OwnedFd]) -> Result<()> {
    let kept = keep
        .iter()
        .map(|fd| fd.as_raw_fd().cast_unsigned())
        .collect();
    for (first, last) in ranges_without(kept) {
        close_range(first, last)?;
    }
    Ok(())
}

/// The ranges of descriptors above standard error that leave out `kept`: the first and the last number of each.
fn ranges_without(mut kept: Vec<u32>) -> Vec<(u32, u32)> {
    kept.sort_unstable();
    let mut ranges = Vec::new();
    let mut first = FIRST_AFTER_STDERR;
    for next_kept in kept.into_iter().chain([u32::MAX]) {
        if first < next_kept {
            ranges.push((first, next_kept - 1));
        }
        first = first.max(next_kept.saturating_add(1));
    }
    ranges
}

/// close_range(2), since Linux 5.9.
fn close_range(first: u32, last: u32) -> Result<()> {
    // SAFETY: this is a forked child that uses none of these descriptors any more. The caller guarantees that `work` owns none
    // of them. No other value that owns one is dropped, because the child ends by _exit(2).
    let rc = unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
    checked(rc).map(drop).call("close_range(2)")
}

/// Sets close-on-exec on every descriptor but the standard streams, also on those that this process has inherited
/// (close_range(2) with CLOSE_RANGE_CLOEXEC, since Linux 5.11).
///
/// # Errors
///
/// ENOSYS or EINVAL before Linux 5.11: nothing was changed.
pub fn close_on_exec_above_stderr() -> Result<()> {
    // SAFETY: with this flag the call closes nothing now; it takes integers only.
    let rc = unsafe {
        libc::syscall(
            libc::SYS_close_range,
            FIRST_AFTER_STDERR,
            u32::MAX,
            libc::CLOSE_RANGE_CLOEXEC,
        )
    };
    checked(rc)
        .map(drop)
        .call("close_range(CLOSE_RANGE_CLOEXEC)")
}

/// Unblocks all signals, for a program that this process will execute: execve(2) preserves the signal mask.
pub fn unblock_signals() {
    mask_all_signals(libc::SIG_UNBLOCK);
}

fn block_signals() {
    mask_all_signals(libc::SIG_BLOCK);
}

/// Blocks or unblocks all signals (sigprocmask(2)).
fn mask_all_signals(how: libc::c_int) {
    // SAFETY: a sigset_t has no invalid bits, and both calls get one that lives across them.
    unsafe {
        let mut all = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::sigprocmask(how, &raw const all, std::ptr::null_mut());
    }
}

const FIRST_AFTER_STDERR: u32 = 3;
/// The exit code of Rust programs that panic.
const PANICKED: u8 = 101;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_leave_out_the_kept_descriptors_and_the_standard_streams() {
        const LAST: u32 = u32::MAX - 1;
        for (kept, ranges) in [
            (vec![], vec![(3, LAST)]),
            (vec![7, 3, 4], vec![(5, 6), (8, LAST)]),
            // A standard stream among the kept ones must not make the others close.
            (vec![1], vec![(3, LAST)]),
            (vec![0, 5], vec![(3, 4), (6, LAST)]),
        ] {
            assert_eq!(ranges_without(kept.clone()), ranges, "{kept:?}");
        }
    }
}
