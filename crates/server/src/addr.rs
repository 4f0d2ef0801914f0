//! Address types that can't be taken for one another.
//!
//! This program replaces one address by another, so every address has a type that names its role.

use std::fmt::{self, Display, Formatter};
use std::net::{IpAddr, SocketAddr};

pub use peername_proto::canonical;
use serde::{Deserialize, Serialize};

/// The real peer of an accepted connection: usually the balancer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize, Serialize)]
pub struct PeerAddr(pub SocketAddr);

/// The address that a listening socket is bound to, or the local address of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LocalAddr(pub SocketAddr);

/// The client's address according to the header. Only the source policy makes it the source of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize, Serialize)]
pub struct ClaimedSource(pub SocketAddr);

/// The backend's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Target(pub SocketAddr);

impl PeerAddr {
    /// The IP address, in IPv4 form where an IPv6 socket showed it as `::ffff:a.b.c.d`.
    pub fn ip(self) -> IpAddr {
        self.0.ip().to_canonical()
    }

    /// Returns an IPv4-mapped address (`::ffff:a.b.c.d`, from an IPv6 socket) in its IPv4 form, and any other address
    /// unchanged: a link-local address needs its scope.
    pub fn canonical(self) -> SocketAddr {
        match self.ip() {
            ip @ IpAddr::V4(_) => SocketAddr::new(ip, self.0.port()),
            IpAddr::V6(_) => self.0,
        }
    }
}

impl LocalAddr {
    /// Converts an IPv4-mapped address (`::ffff:a.b.c.d`, from an IPv6 socket) to its IPv4 form.
    pub fn canonical(addr: SocketAddr) -> Self {
        Self(canonical(addr))
    }
}

impl ClaimedSource {
    /// Converts an IPv4-mapped address to its IPv4 form: an IPv4-mapped client is an IPv4 client.
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
