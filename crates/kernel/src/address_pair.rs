//! The addresses of a datagram.

use std::net::{IpAddr, SocketAddr};

/// Source and destination of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressPair {
    /// Source.
    pub from: SocketAddr,
    /// Destination.
    pub to: SocketAddr,
}

impl AddressPair {
    /// The pair of the opposite direction.
    pub(crate) fn reversed(self) -> Self {
        Self {
            from: self.to,
            to: self.from,
        }
    }

    /// Whether both ends are IPv4, or IPv4-mapped IPv6.
    pub(crate) fn is_v4(&self) -> bool {
        self.from.ip().to_canonical().is_ipv4() && self.to.ip().to_canonical().is_ipv4()
    }

    /// Whether both ends are IPv6, and not IPv4-mapped.
    pub(crate) fn is_v6(&self) -> bool {
        let is_v6 = |addr: SocketAddr| addr.ip().to_canonical().is_ipv6();
        is_v6(self.from) && is_v6(self.to)
    }

    /// Whether both addresses can be routed without an interface: IPv6's link-local ones can't.
    pub(crate) fn is_routable(&self) -> bool {
        let is_link_local =
            |addr: SocketAddr| matches!(addr.ip(), IpAddr::V6(ip) if ip.is_unicast_link_local());
        !is_link_local(self.from) && !is_link_local(self.to)
    }

    /// Both IP addresses as in a packet.
    pub(crate) fn ip_bytes(&self) -> Vec<u8> {
        let ips = [self.from.ip().to_canonical(), self.to.ip().to_canonical()];
        let bytes = ips.map(|ip| match ip {
            IpAddr::V4(ip) => ip.octets().to_vec(),
            IpAddr::V6(ip) => ip.octets().to_vec(),
        });
        bytes.concat()
    }
}
