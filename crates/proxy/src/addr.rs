//! Addresses that can't be taken for one another.
//!
//! This program's whole job is to say one address in place of another, so none of them is ever bare.

use std::fmt::{self, Display, Formatter};
use std::net::{IpAddr, SocketAddr};

/// Who is really at the other end of an accepted connection: usually the balancer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PeerAddr(pub SocketAddr);

/// The address of ours that is listened on, as it was configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LocalAddr(pub SocketAddr);

/// Who the header says the client is. Only a [`crate::permit::Permit`] makes it the source of a
/// connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ClaimedSource(pub SocketAddr);

/// The backend's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Target(pub SocketAddr);

/// One form for one address: IPv4 where it is IPv4 in IPv6 (`::ffff:a.b.c.d`), and without flow and scope.
pub(crate) fn canonical(addr: SocketAddr) -> SocketAddr {
    SocketAddr::new(addr.ip().to_canonical(), addr.port())
}

impl PeerAddr {
    /// The peer's IP address, in IPv4 form where an IPv6 socket showed it as `::ffff:a.b.c.d`.
    pub fn ip(self) -> IpAddr {
        self.0.ip().to_canonical()
    }
}

impl PeerAddr {
    /// The peer in IPv4 form where an IPv6 socket showed it as `::ffff:a.b.c.d`, else as it is: a link-local
    /// address is nothing without its interface.
    pub(crate) fn canonical(self) -> SocketAddr {
        match self.ip() {
            ip @ IpAddr::V4(_) => SocketAddr::new(ip, self.0.port()),
            IpAddr::V6(_) => self.0,
        }
    }
}

impl LocalAddr {
    /// The address in IPv4 form where an IPv6 socket shows it as `::ffff:a.b.c.d`.
    pub fn canonical(addr: SocketAddr) -> Self {
        Self(canonical(addr))
    }
}

impl ClaimedSource {
    /// The claim as a socket can bear it: an IPv4-mapped client is an IPv4 client.
    pub fn canonical(claimed: SocketAddr) -> Self {
        Self(canonical(claimed))
    }
}

macro_rules! display_as_socket_addr {
    ($($name:ident),*) => {$(
        impl Display for $name {
            fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    )*};
}

display_as_socket_addr!(PeerAddr, LocalAddr, ClaimedSource, Target);
