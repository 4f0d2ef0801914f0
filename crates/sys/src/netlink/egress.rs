//! Which way a packet of this host's would take, asked on the spot: for loops that can't wait for an answer of another
//! task. The kernel answers such a question within the call that asks it.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};

use rtnetlink::packet_core::{NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::packet_route::route::{RouteAttribute, RouteMessage};
use rustix::net::sockopt::{ip_mtu, ipv6_mtu};

use super::raw;
use super::route::{bits, question};
use crate::{NameCall, Result};

/// A way out of this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Egress {
    /// Index of the device.
    pub interface: u32,
    /// The largest IP packet that goes all the way, in octets, as far as is known: the device's, the route's, or what
    /// somebody further on has said (IP_MTU, ip(7)).
    pub mtu: u32,
}

impl Egress {
    /// The way of what `from`, an address of this host, sends to `to`. Needs no capability.
    ///
    /// # Errors
    ///
    /// ENETUNREACH and EHOSTUNREACH where there is no way.
    pub fn lookup(from: IpAddr, to: IpAddr) -> Result<Self> {
        Ok(Self {
            interface: interface(from, to)?,
            mtu: mtu(from, to)?,
        })
    }
}

fn mtu(from: IpAddr, to: IpAddr) -> Result<u32> {
    let socket = UdpSocket::bind(SocketAddr::new(from, 0)).call("bind(2)")?;
    // Nothing is sent; the port is any but 0.
    socket.connect(SocketAddr::new(to, 9)).call("connect(2)")?;
    match to {
        IpAddr::V4(_) => ip_mtu(&socket).call("getsockopt(IP_MTU)"),
        IpAddr::V6(_) => ipv6_mtu(&socket).call("getsockopt(IPV6_MTU)"),
    }
}

fn interface(from: IpAddr, to: IpAddr) -> Result<u32> {
    let mut message = question(to);
    message.header.source_prefix_length = bits(from);
    message.attributes.push(RouteAttribute::Source(from.into()));
    let route = ask(message)?;
    let interface = route.attributes.iter().find_map(|about| match about {
        RouteAttribute::Oif(index) => Some(*index),
        _ => None,
    });
    interface
        .ok_or(io::ErrorKind::InvalidData)
        .call("RTM_GETROUTE")
}

fn ask(question: RouteMessage) -> Result<RouteMessage> {
    let socket = raw::open(None).call("socket(NETLINK_ROUTE)")?;
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST;
    let payload = NetlinkPayload::from(RouteNetlinkMessage::GetRoute(question));
    let mut message = NetlinkMessage::new(header, payload);
    message.finalize();
    let mut octets = vec![0; message.buffer_len()];
    message.serialize(&mut octets);
    raw::ask(&socket, &octets).call("send(RTM_GETROUTE)")?;
    let mut buffer = vec![0; 8 << 10];
    let answer = raw::answer(&socket, &mut buffer).call("recv(RTM_GETROUTE)")?;
    let answer = NetlinkMessage::<RouteNetlinkMessage>::deserialize(answer);
    match answer.map(|answer| answer.payload) {
        Ok(NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewRoute(route))) => Ok(route),
        Ok(NetlinkPayload::Error(error)) => Err(error.to_io()),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
    .call("RTM_GETROUTE")
}
