//! Standard error: non-blocking writes, for a process that must not wait for the reader; and its replacement.

use std::io;
use std::os::fd::AsFd;
use std::sync::OnceLock;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::stdio::dup2_stderr;

use crate::{NameCall, Result};

/// Has each line of this process name what it is about, such as `container web`: `peername: container web: …`.
pub fn set_subject(subject: String) {
    let _ = SUBJECT.set(subject);
}

static SUBJECT: OnceLock<String> = OnceLock::new();

/// Writes a line that begins with `peername: `, or drops it if standard error is not writable now: it may be a pipe without a reader.
///
/// Dropped lines and errors are not reported: there is no other channel.
pub fn try_write_line(line: &str) {
    let stderr = io::stderr();
    let now = Timespec::try_from(Duration::ZERO).ok();
    let mut fds = [PollFd::new(&stderr, PollFlags::OUT)];
    let ready = poll(&mut fds, now.as_ref());
    if ready.is_ok_and(|ready| ready > 0) {
        // At most PIPE_BUF bytes: these are written without blocking if poll(2) reports the pipe writable (pipe(7)).
        let line = match (SUBJECT.get(), line.strip_prefix(NAME)) {
            (Some(subject), Some(rest)) => format!("{NAME}{subject}: {rest}"),
            _ => line.to_owned(),
        };
        let end = line.floor_char_boundary(PIPE_BUF - 1);
        let line = format!("{}\n", line.get(..end).unwrap_or(&line));
        let _ = rustix::io::write(&stderr, line.as_bytes());
    }
}

/// Makes standard error this file from now on (dup2(2)).
///
/// # Errors
///
/// Only EBUSY and EINTR, in a race with open(2).
pub fn replace(file: impl AsFd) -> Result<()> {
    dup2_stderr(file).call("dup2(2)")
}

const NAME: &str = "peername: ";
const PIPE_BUF: usize = 4096;
