//! Standard error: non-blocking writes, for a process that must not wait for the reader; and its replacement.

use std::io::{self, IoSlice};
use std::os::fd::AsFd;
use std::sync::OnceLock;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, ReadWriteFlags, pwritev2};
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
    let line = match (SUBJECT.get(), line.strip_prefix(NAME)) {
        (Some(subject), Some(rest)) => format!("{NAME}{subject}: {rest}"),
        _ => line.to_owned(),
    };
    // A pipe takes so many bytes as a whole (pipe(7)).
    let end = line.floor_char_boundary(PIPE_BUF - 1);
    let line = format!("{}\n", line.get(..end).unwrap_or(&line));
    let stderr = io::stderr();
    let bytes = [IoSlice::new(line.as_bytes())];
    // O_NONBLOCK would change the description, which other processes share.
    match pwritev2(&stderr, &bytes, AT_POSITION, ReadWriteFlags::NOWAIT) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::PERM) if is_writable(&stderr) => {
            // A terminal. What another process writes between the two calls may fill it, and then this waits.
            let _ = rustix::io::write(&stderr, line.as_bytes());
        }
        _ => {}
    }
}

fn is_writable(file: impl AsFd) -> bool {
    let now = Timespec::try_from(Duration::ZERO).ok();
    let mut fds = [PollFd::new(&file, PollFlags::OUT)];
    poll(&mut fds, now.as_ref()).is_ok_and(|ready| ready > 0)
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
/// Of pwritev2(2): at the position of the file, as write(2).
const AT_POSITION: u64 = u64::MAX;
