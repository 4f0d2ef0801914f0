//! The program's listeners, as sockets and not as addresses: a wake-up connection must not reach another program's listener.
//!
//! No descriptor of a listener is kept, because the program must be able to free its port. Instead an epoll(7) instance
//! watches each listener, which does not keep the listener open, and from which the kernel removes a closed one.

use std::collections::HashMap;
use std::fs;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use peername_sys::Result;
use peername_sys::event::epoll::{Epoll, Interest};
use peername_sys::tcp::foreign_listener::ForeignListener;
use peername_sys::tcp::socket_info;

/// The address of a listener, with the network namespace: each namespace can have a listener at the same address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ListenerAddr {
    /// The socket's own address.
    pub(crate) addr: SocketAddr,
    /// The network namespace (SO_NETNS_COOKIE; 0 if unknown).
    pub(crate) namespace: u64,
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

/// The listeners of which processes of the program have passed a descriptor.
#[derive(Debug)]
pub(super) struct Listeners {
    by_inode: HashMap<u64, WatchedListener>,
    /// The network namespace of wake-up connections (SO_NETNS_COOKIE; 0 if unknown).
    namespace: u64,
    /// The maximum number of listeners. When it is reached, all are removed: those that are still used are added again with the
    /// next connection.
    capacity: usize,
    /// The number of listeners at which the closed ones are removed next.
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
    /// EMFILE, ENFILE or ENOMEM: there is no descriptor, or no memory, to watch the listener.
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

    /// Removes the closed listeners, or all if too many are left. The next time is when the number of the rest has doubled.
    fn prune(&mut self) {
        self.by_inode.retain(|_, listener| listener.is_open());
        if self.by_inode.len() >= self.capacity {
            self.by_inode.clear();
        }
        let next = (self.by_inode.len() * 2).max(MIN_PRUNED);
        self.prune_at = next.min(self.capacity);
    }

    /// Whether a listener at this address can be reached by wake-up connections.
    pub(super) fn has_listener_at(&self, at: ListenerAddr) -> bool {
        let is_reachable = self.namespace == 0 || at.namespace == self.namespace;
        let mut watched = self.by_inode.values();
        is_reachable && watched.any(|listener| listener.at == at && listener.is_listening())
    }
}

impl WatchedListener {
    /// Whether a process has the socket open: the epoll instance has a target (proc_pid_fdinfo(5)). True if that can't be read
    /// for want of a descriptor.
    fn is_open(&self) -> bool {
        let path = format!("/proc/self/fdinfo/{}", self.epoll.as_fd().as_raw_fd());
        fs::read_to_string(path).map_or(true, |info| {
            info.lines().any(|line| line.starts_with("tfd:"))
        })
    }

    /// Whether the socket is open and was not shut down.
    fn is_listening(&self) -> bool {
        let mut events = Vec::new();
        let polled = self.epoll.wait(Some(Duration::ZERO), &mut events);
        polled.is_ok() && !events.iter().any(|event| event.hung_up) && self.is_open()
    }
}

/// The maximum capacity.
pub(super) const MAX_LISTENERS: usize = 1024;
/// Fewer listeners than this are not examined: that would cost more than keeping the closed ones.
const MIN_PRUNED: usize = 64;
