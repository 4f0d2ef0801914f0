//! Waiting for events of descriptors, with and without a runtime: poll, epoll, and tokio's readiness.

pub mod async_epoll;
pub mod epoll;
pub mod readiness;
pub mod signals;

use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::{NameCall, Result};

/// Waits until one of `fds` is readable or hung up (poll(2)). Returns `false` after the timeout `limit`,
/// and after a signal.
pub fn wait_readable<'a>(
    fds: impl IntoIterator<Item = BorrowedFd<'a>>,
    limit: Option<Duration>,
) -> Result<bool> {
    let mut fds: Vec<_> = fds
        .into_iter()
        .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
        .collect();
    let limit = limit.map(|limit| Timespec::try_from(limit).unwrap_or(FOR_EVER));
    match poll(&mut fds, limit.as_ref()) {
        Err(Errno::INTR) => Ok(false),
        ready => ready.map(|ready| ready > 0).call("poll(2)"),
    }
}

/// Waits until `fd` is writable, or has an error (poll(2)); also returns after a signal.
pub fn wait_writable(fd: BorrowedFd<'_>) -> Result<()> {
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::OUT)];
    match poll(&mut fds, None) {
        Err(Errno::INTR) => Ok(()),
        ready => ready.map(drop).call("poll(2)"),
    }
}

/// For a limit that a `timespec` can't represent.
const FOR_EVER: Timespec = Timespec {
    tv_sec: i64::MAX,
    tv_nsec: 0,
};
