//! The limits of open files (RLIMIT_NOFILE) and of file sizes (RLIMIT_FSIZE).

use std::fs;
use std::os::fd::RawFd;

use libc::c_int;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::{NameCall, Result};

/// Raises the soft limit of open files to the hard limit and returns it.
///
/// The usual soft limit of 1024 is for programs that use `select(2)`, which peername does not.
pub fn raise_open_files() -> Result<u64> {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: limit.maximum,
            maximum: limit.maximum,
        },
    )
    .call("setrlimit(RLIMIT_NOFILE)")?;
    Ok(limit.maximum.unwrap_or(u64::MAX))
}

/// The number of descriptors that this process may open: its soft limit.
pub fn max_open_files() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Counts the descriptors that this process has open.
///
/// # Errors
///
/// ENOENT without /proc; EMFILE, since counting takes a descriptor.
pub fn count_open_files() -> Result<usize> {
    // Minus the descriptor that lists them.
    Ok(open_files()?.len().saturating_sub(1))
}

/// The numbers of the descriptors that this process has open, in order. The one that lists them is among them, and closed
/// afterwards.
pub fn open_files() -> Result<Vec<RawFd>> {
    let entries = fs::read_dir("/proc/self/fd").call("open(/proc/self/fd)")?;
    let mut numbers: Vec<RawFd> = entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    numbers.sort_unstable();
    Ok(numbers)
}

/// Makes a write beyond the limit of file sizes fail with EFBIG, as it fails with ENOSPC on a full disk. By default SIGXFSZ
/// ends the process (setrlimit(2)). So a handler is installed that does nothing, and not SIG_IGN: execve(2) resets a handler to
/// the default, but a program that is started later would inherit SIG_IGN. If this process itself has inherited SIG_IGN, it
/// keeps it, and passes it on.
pub fn outlive_file_size_limit() {
    extern "C" fn ignore(_: c_int) {}
    let handler = ignore as extern "C" fn(c_int);
    // SAFETY: the handler does nothing, so that it is safe at any point of any thread.
    let inherited = unsafe { libc::signal(libc::SIGXFSZ, handler as libc::sighandler_t) };
    if inherited == libc::SIG_IGN {
        // SAFETY: no code is run.
        unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    }
}
