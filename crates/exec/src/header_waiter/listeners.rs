//! The program's listeners, as sockets and not as addresses: a wake-up connection must not reach another program's listener.
//!
//! No descriptor of a listener is kept, because the program must be able to free its port. Instead an epoll(7) instance watches
//! each listener. It does not keep the listener open, and the kernel removes a closed listener from it.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use peername_sys::event::epoll::{Epoll, Interest};
use peername_sys::socket::bound_interface;
use peername_sys::tcp::foreign_listener::ForeignListener;
use peername_sys::tcp::socket_info;
use peername_sys::{Errno, NameCall, Result};

/// The address of a listener, with the network namespace and the interface: each namespace can have a listener at the same
/// address, and so can each interface (SO_BINDTODEVICE). Listeners that are equal in all of these share their connections
/// (SO_REUSEPORT), or one follows the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ListenerAddr {
    /// The socket's own address.
    pub(crate) addr: SocketAddr,
    /// The network namespace (SO_NETNS_COOKIE; 0 if unknown).
    pub(crate) namespace: u64,
    /// The index of the interface that the socket is bound to; 0 if it is bound to none.
    pub(crate) interface: u32,
}

impl ListenerAddr {
    /// The address of a socket that is bound to `addr`, and is about to listen.
    pub(crate) fn of_bound(socket: impl AsFd, addr: SocketAddr) -> Self {
        Self {
            addr,
            namespace: socket_info::netns_cookie(&socket),
            interface: bound_interface(&socket),
        }
    }
}

impl From<&ForeignListener> for ListenerAddr {
    fn from(listener: &ForeignListener) -> Self {
        let namespace = listener.netns_cookie;
        Self {
            addr: listener.addr,
            namespace: namespace.unwrap_or_else(|| socket_info::netns_cookie(listener)),
            interface: bound_interface(listener),
        }
    }
}

/// The listeners of which processes of the program have passed a descriptor.
#[derive(Debug)]
pub(super) struct Listeners {
    by_inode: HashMap<u64, WatchedListener>,
    /// The network namespace of wake-up connections (SO_NETNS_COOKIE; 0 if unknown).
    namespace: u64,
    /// The maximum number of listeners. When it is reached, those at which no connection waits are removed: they are added
    /// again with their next connection.
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
        let capacity = capacity.max(1);
        Self {
            by_inode: HashMap::new(),
            namespace,
            capacity,
            prune_at: MIN_PRUNED.min(capacity),
        }
    }

    /// Adds a listener at this address, if it is not watched already. `waited_for` returns the addresses at which connections
    /// wait.
    ///
    /// # Errors
    ///
    /// EMFILE, ENFILE or ENOMEM: there is no descriptor, or no memory, to watch the listener. EMFILE also if connections wait at
    /// as many listeners as can be watched.
    pub(super) fn add(
        &mut self,
        socket: impl AsFd,
        at: ListenerAddr,
        waited_for: impl FnOnce() -> HashSet<ListenerAddr>,
    ) -> Result<()> {
        let inode = socket_info::inode(&socket)?;
        let known = self.by_inode.get(&inode);
        if known.is_some_and(|known| known.at == at && known.is_open()) {
            return Ok(());
        }
        // One listener of an address is enough for wake-ups (SO_REUSEPORT).
        let is_full = self.by_inode.len() >= self.capacity;
        if is_full && self.has_open_at(at) {
            return Ok(());
        }
        if self.by_inode.len() >= self.prune_at {
            self.prune(waited_for);
        }
        if self.by_inode.len() >= self.capacity {
            return Err(Errno::MFILE).call("epoll_create1(2), for a listener");
        }
        let epoll = Epoll::new()?;
        epoll.add(&socket, 0, Interest::Readable)?;
        self.by_inode.insert(inode, WatchedListener { at, epoll });
        Ok(())
    }

    /// Whether a listener at this address was added. It may be closed by now.
    pub(super) fn knows(&self, at: ListenerAddr) -> bool {
        self.by_inode.values().any(|listener| listener.at == at)
    }

    fn has_open_at(&self, at: ListenerAddr) -> bool {
        let mut watched = self.by_inode.values();
        watched.any(|listener| listener.at == at && listener.is_open())
    }

    /// Removes the closed listeners, and if too many are left those at which no connection waits. The next pruning is due when
    /// the number of those that are left has doubled.
    fn prune(&mut self, waited_for: impl FnOnce() -> HashSet<ListenerAddr>) {
        self.by_inode.retain(|_, listener| listener.is_open());
        if self.by_inode.len() >= self.capacity {
            let waited_for = waited_for();
            self.by_inode
                .retain(|_, listener| waited_for.contains(&listener.at));
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

/// Fewer listeners than this are not examined: that would cost more than keeping the closed ones.
const MIN_PRUNED: usize = 64;

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn listener_is_watched_while_connections_wait_at_it() {
        let mut listeners = Listeners::new(0, 2);
        let [first, second, third] = [(); 3].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let one_waits = || HashSet::from([addr_of(&first)]);
        for listener in [&first, &second, &third] {
            let added = listeners.add(listener, addr_of(listener), one_waits);
            added.unwrap();
        }
        let watched = |listeners: &Listeners| {
            [&first, &second, &third].map(|listener| listeners.has_listener_at(addr_of(listener)))
        };
        assert_eq!(watched(&listeners), [true, false, true]);
        let both_wait = || HashSet::from([addr_of(&first), addr_of(&third)]);
        let added = listeners.add(&second, addr_of(&second), both_wait);
        assert_eq!(
            added.unwrap_err().errno(),
            Some(Errno::MFILE.raw_os_error())
        );
        assert_eq!(watched(&listeners), [true, false, true]);
        // Another listener of an address that is watched (SO_REUSEPORT).
        let added = listeners.add(&second, addr_of(&third), both_wait);
        assert!(added.is_ok());
    }

    fn addr_of(listener: &TcpListener) -> ListenerAddr {
        ListenerAddr {
            addr: listener.local_addr().unwrap(),
            namespace: 0,
            interface: 0,
        }
    }
}
