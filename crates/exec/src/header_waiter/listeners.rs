//! The program's listeners, as sockets and not as addresses: a wake-up connection is opened to no other.
//!
//! No descriptor of a listener is kept, because the program must be able to free its port. An epoll(7) instance watches each
//! instead, which does not keep it open, and from which the kernel removes it once it is closed.

use std::collections::HashMap;
use std::fs;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use peername_sys::Result;
use peername_sys::event::epoll::{Epoll, Interest};
use peername_sys::tcp::socket_info;

/// The listeners that processes of the program have shown.
#[derive(Debug)]
pub(super) struct Listeners {
    by_inode: HashMap<u64, WatchedListener>,
    /// The network namespace of wake-up connections (SO_NETNS_COOKIE; 0 if unknown).
    namespace: u64,
}

#[derive(Debug)]
struct WatchedListener {
    addr: SocketAddr,
    /// Whether it is in the namespace of wake-up connections.
    is_reachable: bool,
    epoll: Epoll,
}

impl Listeners {
    /// Creates an empty set.
    pub(super) fn new(namespace: u64) -> Self {
        Self {
            by_inode: HashMap::new(),
            namespace,
        }
    }

    /// Adds a listener at this address, if it is not watched already.
    ///
    /// # Errors
    ///
    /// Those of fstat(2), epoll_create1(2) and epoll_ctl(2): there is no descriptor, or no memory.
    pub(super) fn add(&mut self, socket: impl AsFd, addr: SocketAddr) -> Result<()> {
        let inode = socket_info::inode(&socket)?;
        let known = self.by_inode.get(&inode);
        if known.is_some_and(|known| known.addr == addr && known.is_open()) {
            return Ok(());
        }
        if self.by_inode.len() >= MAX_LISTENERS {
            self.by_inode.retain(|_, listener| listener.is_open());
        }
        if self.by_inode.len() >= MAX_LISTENERS {
            self.by_inode.clear();
        }
        let epoll = Epoll::new()?;
        epoll.add(&socket, 0, Interest::Readable)?;
        let listener = WatchedListener {
            addr,
            is_reachable: self.namespace == 0
                || socket_info::netns_cookie(socket) == self.namespace,
            epoll,
        };
        self.by_inode.insert(inode, listener);
        Ok(())
    }

    /// Whether one of them listens at this address, in the namespace of wake-up connections.
    pub(super) fn listen_at(&self, addr: SocketAddr) -> bool {
        self.by_inode
            .values()
            .any(|listener| listener.addr == addr && listener.is_reachable && listener.listens())
    }
}

impl WatchedListener {
    /// Whether a process has the socket open: the epoll instance has a target (proc_pid_fdinfo(5)).
    fn is_open(&self) -> bool {
        let path = format!("/proc/self/fdinfo/{}", self.epoll.as_fd().as_raw_fd());
        fs::read_to_string(path).is_ok_and(|info| info.lines().any(|line| line.starts_with("tfd:")))
    }

    /// Whether it is open and was not shut down.
    fn listens(&self) -> bool {
        let mut found = Vec::new();
        let polled = self.epoll.wait(Some(Duration::ZERO), &mut found);
        polled.is_ok() && !found.iter().any(|event| event.hung_up) && self.is_open()
    }
}

/// The capacity. Beyond it all are forgotten, and those that are still used are shown again with the next connection.
const MAX_LISTENERS: usize = 1024;
