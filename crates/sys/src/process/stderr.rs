//! Standard error: writes that ignore errors, and non-blocking ones, for a process that must not wait for the reader; and its
//! replacement.

use std::fmt::Display;
use std::io::{self, IoSlice, Write};
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, fstat};
use rustix::io::{Errno, ReadWriteFlags, pwritev2};
use rustix::stdio::dup2_stderr;

use crate::{NameCall, Result};

/// Writes a line, and ignores errors. `eprintln!` panics, which ends the process, if standard error is a file on a full disk or a
/// pipe that its reader has closed.
///
/// Waits while standard error is a full pipe; [`try_write_line`] does not.
pub fn write_line(line: impl Display) {
    let _ = io::stderr().write_all(format!("{line}\n").as_bytes());
}

/// Writes a line, or drops it if standard error is not writable now: it may be a full pipe that no process reads.
///
/// Dropped lines and errors are not reported: there is no other channel.
pub fn try_write_line(line: &str) {
    let _ = write_line_if_writable(line);
}

/// As [`try_write_line`], and returns whether the line was written.
pub fn write_line_if_writable(line: &str) -> bool {
    let end = line.floor_char_boundary(PIPE_BUF - 1);
    let line = format!("{}\n", line.get(..end).unwrap_or(line));
    let stderr = io::stderr();
    if is_stream(&stderr)
        && let Some(is_written) = write_without_waiting(&stderr, line.as_bytes())
    {
        return is_written;
    }
    // Terminals, files, FIFOs, and pipes before Linux 6.4. If another writer fills one of these between the two calls, the write
    // blocks.
    is_writable(&stderr) && rustix::io::write(&stderr, line.as_bytes()).is_ok()
}

/// Whether the file is a pipe or a socket. Regular files have no reader to wait for, and some file systems refuse RWF_NOWAIT
/// (XFS: EAGAIN where the time of the last change has to be written).
fn is_stream(file: impl AsFd) -> bool {
    let kind = fstat(file).map(|stat| FileType::from_raw_mode(stat.st_mode));
    matches!(kind, Ok(FileType::Fifo | FileType::Socket))
}

/// Writes the line, or drops it where the write would wait (RWF_NOWAIT, pwritev2(2)). O_NONBLOCK would also apply to other
/// processes that share the open file. Returns whether it was written, or `None` if the kernel does not support RWF_NOWAIT for this
/// file.
fn write_without_waiting(file: impl AsFd, line: &[u8]) -> Option<bool> {
    let written = pwritev2(
        file,
        &[IoSlice::new(line)],
        AT_POSITION,
        ReadWriteFlags::NOWAIT,
    );
    match written {
        Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::PERM) => None,
        written => Some(written.is_ok()),
    }
}

fn is_writable(file: impl AsFd) -> bool {
    let now = Timespec::try_from(Duration::ZERO).ok();
    let mut fds = [PollFd::new(&file, PollFlags::OUT)];
    poll(&mut fds, now.as_ref()).is_ok_and(|ready| ready > 0)
}

/// Replaces standard error by this file (dup2(2)).
///
/// # Errors
///
/// Only EBUSY and EINTR, in a race with open(2).
pub fn replace(file: impl AsFd) -> Result<()> {
    dup2_stderr(file).call("dup2(2)")
}

/// A write of at most this many bytes to a pipe is not mixed with those of others (pipe(7)).
const PIPE_BUF: usize = 4096;
/// The offset by which pwritev2(2) writes at the position of the file, as write(2) does.
const AT_POSITION: u64 = u64::MAX;
