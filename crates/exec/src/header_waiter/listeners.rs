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
use peername_sys::tcp::foreign_listener::ForeignListener;
use peername_sys::tcp::socket_info;

/// The address of a listener. Each network namespace can have a listener at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ListenerAddr {
    /// The socket's own address.
    pub addr: SocketAddr,
    /// The network namespace (SO_NETNS_COOKIE; 0 if unknown).
    pub namespace: u64,
}

impl From<&ForeignListener> for ListenerAddr {
    fn from(listener: &ForeignListener) -> Self {
        let namespace = listener.netns_cookie;
        Self {
            addr: listener.addr,
            namespace: namespace.unwrap_or_else(|| socket_info::netns_cookie(listener)),
        }
    }
}

/// The listeners that processes of the program have shown.
#[derive(Debug)]
pub(super) struct Listeners {
    by_inode: HashMap<u64, WatchedListener>,
    /// The network namespace of wake-up connections (SO_NETNS_COOKIE; 0 if unknown).
    namespace: u64,
    /// How many may be watched. Beyond it all are forgotten, and those that are still used are shown again with the next
    /// connection.
    capacity: usize,
    /// How many are watched when the closed ones are removed next.
    prune_at: usize,
}

#[derive(Debug)]
struct WatchedListener {
    at: ListenerAddr,
    epoll: Epoll,
}

impl Listeners {
    /// Creates an empty set of at most `capacity` listeners, each of which takes a descriptor.
    pub(super) fn new(namespace: u64, capacity: usize) -> Self {
        Self {
            by_inode: HashMap::new(),
            namespace,
            capacity,
            prune_at: MIN_PRUNED.min(capacity),
        }
    }

    /// Adds a listener at this address, if it is not watched already.
    ///
    /// # Errors
    ///
    /// Those of fstat(2), epoll_create1(2) and epoll_ctl(2): there is no descriptor, or no memory.
    pub(super) fn add(&mut self, socket: impl AsFd, at: ListenerAddr) -> Result<()> {
        let inode = socket_info::inode(&socket)?;
        let known = self.by_inode.get(&inode);
        if known.is_some_and(|known| known.at == at && known.is_open()) {
            return Ok(());
        }
        if self.by_inode.len() >= self.prune_at {
            self.prune();
        }
        let epoll = Epoll::new()?;
        epoll.add(&socket, 0, Interest::Readable)?;
        self.by_inode.insert(inode, WatchedListener { at, epoll });
        Ok(())
    }

    /// Removes closed listeners, and all if that makes no room. Each that is left is examined again when there are twice as many.
    fn prune(&mut self) {
        self.by_inode.retain(|_, listener| listener.is_open());
        if self.by_inode.len() >= self.capacity {
            self.by_inode.clear();
        }
        let next = (self.by_inode.len() * 2).max(MIN_PRUNED);
        self.prune_at = next.min(self.capacity);
    }

    /// Whether one of them listens at this address, in the namespace of wake-up connections.
    pub(super) fn listen_at(&self, at: ListenerAddr) -> bool {
        let is_reachable = self.namespace == 0 || at.namespace == self.namespace;
        let mut watched = self.by_inode.values();
        is_reachable && watched.any(|listener| listener.at == at && listener.listens())
    }
}

impl WatchedListener {
    /// Whether a process has the socket open: the epoll instance has a target (proc_pid_fdinfo(5)). Without a descriptor to
    /// read that, it is assumed to be.
    fn is_open(&self) -> bool {
        let path = format!("/proc/self/fdinfo/{}", self.epoll.as_fd().as_raw_fd());
        fs::read_to_string(path).map_or(true, |info| {
            info.lines().any(|line| line.starts_with("tfd:"))
        })
    }

    /// Whether it is open and was not shut down.
    fn listens(&self) -> bool {
        let mut found = Vec::new();
        let polled = self.epoll.wait(Some(Duration::ZERO), &mut found);
        polled.is_ok() && !found.iter().any(|event| event.hung_up) && self.is_open()
    }
}

/// The highest capacity.
pub(super) const MAX_LISTENERS: usize = 1024;
/// Below this number closed ones are kept: examining them would cost more.
const MIN_PRUNED: usize = 64;
