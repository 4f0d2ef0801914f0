//! The servers of this host's loopback, which the program may have meant by a connection to loopback in the jail.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;

use peername_sys::netlink::{SocketLookup, TcpLookup};

/// Looks up listeners in the network namespace in which it was opened, also from within the jail.
#[derive(Debug)]
pub struct HostServers(Option<SocketLookup>);

impl HostServers {
    /// Opens the lookup. Where the kernel has none for TCP, nothing is known of the servers.
    #[must_use]
    pub fn open() -> Self {
        let found = Self(SocketLookup::open().ok());
        // A kernel without the lookup gives the same answer as one that finds nothing.
        let trial = TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
        let is_seen = trial.and_then(|trial| Ok(found.has_listener(trial.local_addr()?)));
        match is_seen {
            Ok(true) => found,
            _ => Self(None),
        }
    }

    /// For a forked process, which gets its descriptors separately.
    pub(crate) fn into_fd(self) -> Option<OwnedFd> {
        self.0.map(OwnedFd::from)
    }

    pub(crate) fn from_fd(fd: Option<OwnedFd>) -> Self {
        Self(fd.map(SocketLookup::from))
    }

    /// Whether the host may have a listener at this address, or at this port of 127.0.0.1 or `::1`: `true` also where the lookup
    /// fails.
    #[must_use]
    pub fn may_listen(&self, addr: SocketAddr) -> bool {
        let localhost = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
        localhost
            .map(|ip: IpAddr| SocketAddr::new(ip, addr.port()))
            .into_iter()
            .chain([addr])
            .any(|addr| self.find(addr) != Some(TcpLookup::Missing))
    }

    /// Whether the host has a listener at this address: `false` also where the lookup fails.
    #[must_use]
    pub fn has_listener(&self, addr: SocketAddr) -> bool {
        self.find(addr) == Some(TcpLookup::Listener)
    }

    fn find(&self, addr: SocketAddr) -> Option<TcpLookup> {
        let client = SocketAddr::new(addr.ip(), 0);
        self.0.as_ref()?.tcp(addr, client).ok()
    }
}
