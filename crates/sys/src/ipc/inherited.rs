//! Sockets that a service manager has opened for us and keeps open while we restart: the protocol of
//! sd_listen_fds(3), in the few lines that a server needs.

use std::env;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};
use socket2::{SockRef, Type};

use crate::{NameCall, Result};

/// A bound socket that was there when this process began.
#[derive(Debug)]
pub struct Inherited {
    socket: OwnedFd,
    /// Its address.
    pub addr: SocketAddr,
    /// Whether it is TCP that is listened for, rather than UDP.
    pub is_stream: bool,
    /// Which one, to the service manager: a number from 3 on, with the name it was given.
    pub what: String,
}

/// Takes what was passed to this process; nothing at the second call. They are closed on exec from now on.
///
/// # Errors
///
/// What was passed is no bound socket of IPv4 or IPv6: whoever set it up meant something else.
pub fn take() -> Result<Vec<Inherited>> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    let ours = variable("LISTEN_PID") == Some(u64::from(std::process::id()));
    if !ours || TAKEN.swap(true, Relaxed) {
        return Ok(Vec::new());
    }
    let count = variable("LISTEN_FDS").unwrap_or(0).min(MOST);
    let names = env::var("LISTEN_FDNAMES").unwrap_or_default();
    let mut names = names.split(':');
    (FIRST..FIRST + count as i32)
        .map(|number| {
            // SAFETY: only an open descriptor is made an owned one. The number belongs to us alone: the
            // service manager has given it away by the environment, and it is taken once.
            let socket = unsafe {
                let there = BorrowedFd::borrow_raw(number);
                fcntl_getfd(there).call("LISTEN_FDS: fcntl(F_GETFD)")?;
                OwnedFd::from_raw_fd(number)
            };
            let name = names.next().filter(|name| !name.is_empty());
            let what = match name {
                Some(name) => format!("{number} ({name})"),
                None => number.to_string(),
            };
            Inherited::new(socket, what)
        })
        .collect()
}

impl Inherited {
    fn new(socket: OwnedFd, what: String) -> Result<Self> {
        fcntl_setfd(&socket, FdFlags::CLOEXEC).call("fcntl(FD_CLOEXEC)")?;
        let known = SockRef::from(&socket);
        let is_stream = known.r#type().call("LISTEN_FDS: getsockopt(SO_TYPE)")? == Type::STREAM;
        let addr = known.local_addr().call("LISTEN_FDS: getsockname(2)")?;
        let addr = addr.as_socket();
        let addr = addr.ok_or_else(|| io::Error::other("neither IPv4 nor IPv6"));
        Ok(Self {
            addr: addr.call("LISTEN_FDS: getsockname(2)")?,
            socket,
            is_stream,
            what,
        })
    }

    /// Another descriptor of the same socket, non-blocking.
    pub fn share(&self) -> Result<OwnedFd> {
        let shared = self.socket.try_clone().call("fcntl(F_DUPFD_CLOEXEC)")?;
        SockRef::from(&shared)
            .set_nonblocking(true)
            .call("fcntl(O_NONBLOCK)")?;
        Ok(shared)
    }
}

impl AsFd for Inherited {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn variable(name: &str) -> Option<u64> {
    env::var(name).ok()?.parse().ok()
}

/// SD_LISTEN_FDS_START.
const FIRST: i32 = 3;
/// More than any unit has; it bounds what a broken environment can make us try.
const MOST: u64 = 65_536;
