//! Processes of ours that run beside a program without being its children.

use std::ffi::CStr;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};

use rustix::process::{Pid, WaitOptions, setpgid, waitpid};
use rustix::stdio::{dup2_stdin, dup2_stdout};

use crate::{NameCall, Result, SyscallError};

/// Runs `work` in a process that nobody here has to wait for: its parent is init, or whoever reaps
/// orphans. It has a process group of its own, so the terminal's signals don't reach it, and blocks all
/// signals that can be blocked: a service manager that signals a whole group means the program.
///
/// It stays in the session. Outside of it, the scheduler would set its share of the processors against
/// the program's (`kernel.sched_autogroup_enabled`, sched(7)), and what works for one service takes turns as two.
///
/// `work` gives its exit code. Of this process's descriptors the new one has standard error and those of
/// `keep`, which come back to it: a socket that it had beside would stay open for as long as it runs.
///
/// # Errors
///
/// EBUSY when this process has more than one thread: the others would be missing in the new one with
/// whatever locks they hold. Else what fork(2) says.
pub fn spawn_detached<K: AsRef<[OwnedFd]>>(keep: K, work: impl FnOnce(K) -> u8) -> Result<()> {
    let between = fork(|| {
        let _ = setpgid(None, None);
        fork(|| {
            block_signals();
            match close_all_except(keep.as_ref()) {
                Ok(()) => work(keep),
                Err(_) => 1,
            }
        })
        .map_or(1, |_| 0)
    })?;
    let ended = waitpid(Some(between), WaitOptions::empty()).call("waitpid(2)")?;
    match ended.and_then(|(_, status)| status.exit_status()) {
        Some(0) => Ok(()),
        _ => Err(io::Error::from(io::ErrorKind::WouldBlock)).call("fork(2)"),
    }
}

/// Runs `work` in a child that is in the same session and has the same signals blocked, and returns its
/// process id. Of the descriptors it has what [`spawn_detached`] says.
///
/// # Errors
///
/// As [`spawn_detached`].
pub fn fork_child<K: AsRef<[OwnedFd]>>(keep: K, work: impl FnOnce(K) -> u8) -> Result<u32> {
    let pid = fork(|| match close_all_except(keep.as_ref()) {
        Ok(()) => work(keep),
        Err(_) => 1,
    })?;
    Ok(pid.as_raw_pid().cast_unsigned())
}

/// Forgets a child that has ended (waitpid(2)).
pub fn reap(child: u32) {
    if let Some(pid) = Pid::from_raw(child.cast_signed()) {
        let _ = waitpid(Some(pid), WaitOptions::NOHANG);
    }
}

/// Ends this process with SIGTERM when its parent ends (PR_SET_PDEATHSIG, prctl(2)). It holds across exec,
/// unless that gains privileges.
pub fn set_parent_death_signal() -> Result<()> {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM))
        .call("prctl(PR_SET_PDEATHSIG)")
}

/// Gives this thread a name, as ps(1) and /proc show it (at most 15 octets; prctl(PR_SET_NAME)).
pub fn set_thread_name(name: &CStr) {
    // It is for people only.
    let _ = rustix::thread::set_name(name);
}

fn fork(work: impl FnOnce() -> u8) -> Result<Pid> {
    if thread_count()? != 1 {
        return Err(io::Error::from_raw_os_error(libc::EBUSY))
            .call("fork(2), with several threads");
    }
    // SAFETY: this is the process's only thread, so no lock is held by a thread that the child lacks,
    // and the child may do whatever the parent may.
    match unsafe { libc::fork() } {
        0 => {
            // Unwinding would go on into the parent's functions, in the child.
            let code = catch_unwind(AssertUnwindSafe(work)).unwrap_or(PANICKED);
            // SAFETY: always; what atexit(3) handlers would do is the parent's to do.
            unsafe { libc::_exit(code.into()) }
        }
        pid => Pid::from_raw(pid.max(0)).ok_or_else(|| SyscallError {
            call: "fork(2)",
            source: io::Error::last_os_error(),
        }),
    }
}

fn thread_count() -> Result<usize> {
    let tasks = fs::read_dir("/proc/self/task").call("open(/proc/self/task)")?;
    Ok(tasks.count())
}

fn close_all_except(keep: &[OwnedFd]) -> Result<()> {
    let null = File::options()
        .read(true)
        .write(true)
        .open("/dev/null")
        .call("open(/dev/null)")?;
    dup2_stdin(&null).call("dup2(2)")?;
    dup2_stdout(&null).call("dup2(2)")?;
    drop(null);
    let mut kept: Vec<_> = keep
        .iter()
        .map(|fd| fd.as_raw_fd().cast_unsigned())
        .collect();
    kept.sort_unstable();
    let mut first = FIRST_AFTER_STDERR;
    for kept in kept.into_iter().chain([u32::MAX]) {
        if first < kept {
            close_range(first, kept - 1)?;
        }
        first = kept.saturating_add(1);
    }
    // A directory that is somebody's is not kept busy.
    std::env::set_current_dir("/").call("chdir(/)")
}

/// Since Linux 5.9.
fn close_range(first: u32, last: u32) -> Result<()> {
    // SAFETY: this is a forked child that has promised to use none of these any more: it ends by
    // _exit(2), so that no value that owns one is dropped.
    match unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()).call("close_range(2)"),
    }
}

/// Takes signals again, for a program that this process will execute: what is blocked stays so on exec.
pub fn unblock_signals() {
    // SAFETY: a sigset_t has no invalid bits, and both calls get one that lives across them.
    unsafe {
        let mut all = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::sigprocmask(libc::SIG_UNBLOCK, &raw const all, std::ptr::null_mut());
    }
}

fn block_signals() {
    // SAFETY: a sigset_t has no invalid bits, and both calls get one that lives across them.
    unsafe {
        let mut all = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::sigprocmask(libc::SIG_BLOCK, &raw const all, std::ptr::null_mut());
    }
}

const FIRST_AFTER_STDERR: u32 = 3;
/// What Rust programs end with that panic.
const PANICKED: u8 = 101;
