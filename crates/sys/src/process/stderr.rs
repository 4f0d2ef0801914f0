//! Standard error of a process that must not wait for whoever reads it.

use std::io;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Writes a line, or drops it if there is no room for it now: standard error may be a pipe that is read by nobody.
///
/// Nothing is said of what was dropped, and of an error: there is no other place to say it.
pub fn try_write_line(line: &str) {
    let stderr = io::stderr();
    let now = Timespec::try_from(Duration::ZERO).ok();
    let mut fds = [PollFd::new(&stderr, PollFlags::OUT)];
    let ready = poll(&mut fds, now.as_ref());
    if ready.is_ok_and(|ready| ready > 0) {
        // At most PIPE_BUF octets: these are written at once if poll(2) says that there is room (pipe(7)).
        let line = format!("{line}\n");
        let octets = line.as_bytes();
        let _ = rustix::io::write(&stderr, octets.get(..PIPE_BUF).unwrap_or(octets));
    }
}

const PIPE_BUF: usize = 4096;
