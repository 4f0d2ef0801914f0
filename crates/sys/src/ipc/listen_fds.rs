//! Socket activation: both sides of the protocol of sd_listen_fds(3).
//!
//! A service manager passes sockets that it keeps open while the service restarts; `peername exec` passes sockets to the
//! program that it becomes.

use std::env;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_getfd, fcntl_setfd};

use super::inherited_socket::InheritedSocket;
use crate::error::checked;
use crate::{NameCall, Result};

/// A descriptor that this process inherited.
#[derive(Debug)]
pub struct NamedDescriptor {
    /// Its number, from 3 on.
    pub number: RawFd,
    /// The name that the service manager has for it; may be empty.
    pub name: String,
    /// The descriptor, close-on-exec.
    pub fd: OwnedFd,
}

/// Takes the sockets that were passed to this process, and makes them close-on-exec. A second call returns none.
///
/// # Errors
///
/// A descriptor is not open (EBADF), or is no IPv4 or IPv6 socket: the service manager is misconfigured.
pub fn receive() -> Result<Vec<InheritedSocket>> {
    receive_any()?
        .into_iter()
        .map(|NamedDescriptor { number, name, fd }| {
            let label = match name.as_str() {
                "" => number.to_string(),
                name => format!("{number} ({name})"),
            };
            InheritedSocket::new(fd, label)
        })
        .collect()
}

/// The descriptors that were passed to this process according to its environment. Some of them may not be open.
pub fn announced() -> Range<RawFd> {
    let is_for_us = env_number("LISTEN_PID") == Some(u64::from(std::process::id()));
    let count = env_number("LISTEN_FDS").filter(|_| is_for_us).unwrap_or(0);
    FIRST_FD..FIRST_FD + count.min(MAX_FDS) as RawFd
}

/// Takes the descriptors of any kind that were passed to this process. A second call returns none.
///
/// # Errors
///
/// A descriptor is not open (EBADF): the service manager is misconfigured.
pub fn receive_any() -> Result<Vec<NamedDescriptor>> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    let announced = announced();
    if announced.is_empty() || TAKEN.swap(true, Relaxed) {
        return Ok(Vec::new());
    }
    let names = env::var("LISTEN_FDNAMES").unwrap_or_default();
    let mut names = names.split(':');
    announced
        .map(|number| {
            // SAFETY: only an open descriptor becomes an owned one. This process alone owns the number: the
            // service manager passed it by the environment, and it is taken once.
            let fd = unsafe {
                let borrowed = BorrowedFd::borrow_raw(number);
                fcntl_getfd(borrowed).call("LISTEN_FDS: fcntl(F_GETFD)")?;
                OwnedFd::from_raw_fd(number)
            };
            fcntl_setfd(&fd, FdFlags::CLOEXEC).call("fcntl(F_SETFD)")?;
            let name = names.next().unwrap_or_default().to_owned();
            Ok(NamedDescriptor { number, name, fd })
        })
        .collect()
}

/// Passes sockets to the program that this process executes: moves them to the descriptors 3, 4 … without close-on-exec.
/// The program finds them if its environment has LISTEN_FDS (how many) and LISTEN_PID (this process).
///
/// # Errors
///
/// EBUSY when one of these descriptors is in use: it is not replaced. EMFILE.
pub fn pass_on_exec(sockets: Vec<OwnedFd>) -> Result<()> {
    let end = FIRST_FD + sockets.len() as RawFd;
    // Duplicated above the range first: a socket may have the number that another one is to get.
    let duplicates: Vec<_> = sockets
        .iter()
        .map(|socket| fcntl_dupfd_cloexec(socket, end).call("fcntl(F_DUPFD_CLOEXEC)"))
        .collect::<Result<_>>()?;
    drop(sockets);
    for (number, socket) in (FIRST_FD..end).zip(&duplicates) {
        // SAFETY: F_GETFD and F_DUPFD take integers. F_DUPFD replaces no descriptor: if another thread has taken the number
        // since the check, it returns another one, which is an error below.
        let moved_to = unsafe {
            if libc::fcntl(number, libc::F_GETFD) >= 0 {
                return Err(io::Error::from_raw_os_error(libc::EBUSY)).call("fcntl(F_GETFD)");
            }
            libc::fcntl(socket.as_raw_fd(), libc::F_DUPFD, number)
        };
        if checked(moved_to).call("fcntl(F_DUPFD)")? != number {
            return Err(io::Error::from_raw_os_error(libc::EBUSY)).call("fcntl(F_DUPFD)");
        }
    }
    Ok(())
}

fn env_number(name: &str) -> Option<u64> {
    env::var(name).ok()?.parse().ok()
}

/// SD_LISTEN_FDS_START.
const FIRST_FD: RawFd = 3;
/// More than any unit passes; bounds the work that a broken environment can cause.
const MAX_FDS: u64 = 65_536;
