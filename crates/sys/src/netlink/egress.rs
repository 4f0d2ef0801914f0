//! Synchronous route lookup: the egress of a packet that this host sends. For event loops that can't wait for another
//! task: the kernel answers within the call.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};

use rtnetlink::packet_core::{NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::packet_route::route::{RouteAttribute, RouteMessage};
use rustix::net::sockopt::{ip_mtu, ipv6_mtu};

use super::raw;
use super::route::{
    is_local_route, not_local_if_blackhole, not_local_if_unreachable, prefix_bits, route_request,
};
use crate::{NameCall, Result};

/// The egress of packets from one address to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Egress {
    /// Index of the interface.
    pub interface: u32,
    /// The path MTU in bytes, as far as it is known: the interface's, the route's, or one that a router on the path has
    /// reported (IP_MTU, ip(7)).
    pub mtu: u32,
}

impl Egress {
    /// Looks up the egress of packets from `from`, an address of this host, to `to`. Needs no capability.
    ///
    /// # Errors
    ///
    /// ENETUNREACH and EHOSTUNREACH without a route. For a foreign `from`: ENETUNREACH (IPv4), EADDRNOTAVAIL (IPv6).
    pub fn lookup(from: IpAddr, to: IpAddr) -> Result<Self> {
        Ok(Self {
            interface: interface(from, to)?,
            mtu: mtu(from, to)?,
        })
    }
}

/// Whether packets of this host to `address` are delivered locally. With an `interface` (0 for none): those of a socket that is
/// bound to it (SO_BINDTODEVICE), for which only the interface's own addresses are local. Needs no capability.
///
/// # Errors
///
/// EPERM or EAFNOSUPPORT where a sandbox forbids netlink; ENODEV without the interface.
pub fn is_delivered_locally(address: IpAddr, interface: u32) -> Result<bool> {
    let mut request = route_request(address);
    if interface != 0 {
        request.attributes.push(RouteAttribute::Oif(interface));
    }
    query_route(request)
        .map(|route| is_local_route(&route))
        .or_else(not_local_if_unreachable)
        .or_else(not_local_if_blackhole)
}

fn mtu(from: IpAddr, to: IpAddr) -> Result<u32> {
    let socket = UdpSocket::bind(SocketAddr::new(from, 0)).call("bind(2)")?;
    // connect(2) sends nothing on UDP. Any port but 0 would do.
    socket.connect(SocketAddr::new(to, 9)).call("connect(2)")?;
    match to {
        IpAddr::V4(_) => ip_mtu(&socket).call("getsockopt(IP_MTU)"),
        IpAddr::V6(_) => ipv6_mtu(&socket).call("getsockopt(IPV6_MTU)"),
    }
}

fn interface(from: IpAddr, to: IpAddr) -> Result<u32> {
    let mut message = route_request(to);
    message.header.source_prefix_length = prefix_bits(from);
    message.attributes.push(RouteAttribute::Source(from.into()));
    let route = query_route(message)?;
    let interface = route
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            RouteAttribute::Oif(index) => Some(*index),
            _ => None,
        });
    interface
        .ok_or(io::ErrorKind::InvalidData)
        .call("RTM_GETROUTE")
}

fn query_route(request: RouteMessage) -> Result<RouteMessage> {
    let socket = raw::open(None).call("socket(NETLINK_ROUTE)")?;
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST;
    let payload = NetlinkPayload::from(RouteNetlinkMessage::GetRoute(request));
    let mut message = NetlinkMessage::new(header, payload);
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    raw::send_request(&socket, &bytes).call("send(RTM_GETROUTE)")?;
    let mut buffer = vec![0; MAX_ANSWER_BYTES];
    let answer = raw::receive(&socket, &mut buffer).call("recv(RTM_GETROUTE)")?;
    let answer = NetlinkMessage::<RouteNetlinkMessage>::deserialize(answer);
    match answer.map(|answer| answer.payload) {
        Ok(NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewRoute(route))) => Ok(route),
        Ok(NetlinkPayload::Error(error)) => Err(error.to_io()),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
    .call("RTM_GETROUTE")
}

/// Larger than an answer with one route.
const MAX_ANSWER_BYTES: usize = 8 << 10;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::LOOPBACK;

    #[test]
    fn address_of_this_host_is_told_from_another() {
        let is_local = |address: &str, interface| {
            is_delivered_locally(address.parse().unwrap(), interface).unwrap()
        };
        assert!(is_local("127.0.0.2", 0) && is_local("127.0.0.2", LOOPBACK));
        assert!(!is_local("192.0.2.1", 0) && !is_local("192.0.2.1", LOOPBACK));
        // There is no such interface.
        assert!(is_delivered_locally([127, 0, 0, 1].into(), i32::MAX as u32).is_err());
    }
}
