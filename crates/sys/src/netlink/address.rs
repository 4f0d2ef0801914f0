//! The addresses of interfaces, and notifications of their changes.

use std::net::{IpAddr, Ipv4Addr};

use rtnetlink::MulticastGroup;
use rtnetlink::packet_core::{NetlinkMessage, NetlinkPayload};
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::packet_route::address::{AddressAttribute, AddressMessage};

use super::handle::{Netlink, collect_dump};
use super::monitor::Monitor;
use super::route::{LocalNetwork, local_network};
use crate::Result;

/// One address of one interface (`ip address`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InterfaceAddress {
    /// The host's own address.
    pub own: IpAddr,
    /// An address of its network: `own`, or the far end on a point-to-point link.
    pub network: IpAddr,
    /// Length of the network's prefix, in bits.
    pub prefix_len: u8,
    /// The broadcast address, where one was set. It need not be that of the prefix.
    pub broadcast: Option<Ipv4Addr>,
}

impl Netlink {
    /// The addresses of all interfaces of this network namespace, up or down. Needs no capability.
    pub async fn addresses(&self) -> Result<Vec<InterfaceAddress>> {
        let messages = collect_dump(self.handle.address().get().execute(), "RTM_GETADDR").await?;
        Ok(messages.iter().filter_map(interface_address).collect())
    }
}

/// Subscribes to changes of addresses on interfaces and in the table `local` ([`Netlink::local_networks`]). Needs no
/// capability.
pub type AddressMonitor = Monitor<AddressChange>;

/// A change of this host's addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddressChange {
    /// An interface gained this address.
    Address(InterfaceAddress),
    /// These addresses became local by a route.
    Network(LocalNetwork),
    /// An address was removed, or notifications were lost (ENOBUFS): read all addresses again.
    Other,
}

impl AddressMonitor {
    /// Subscribes to changes from now on; so subscribe first and read the addresses afterwards. Must be
    /// called inside a tokio runtime.
    pub fn subscribe() -> Result<Self> {
        Self::subscribe_to(BIND_CALL, &GROUPS, change)
    }
}

/// `None` for a change that does not concern addresses: on a router other routes change all the time.
fn change(notification: &NetlinkMessage<RouteNetlinkMessage>) -> Option<AddressChange> {
    let NetlinkPayload::InnerMessage(message) = &notification.payload else {
        return Some(AddressChange::Other);
    };
    match message {
        RouteNetlinkMessage::NewAddress(address) => {
            let address = interface_address(address);
            Some(address.map_or(AddressChange::Other, AddressChange::Address))
        }
        RouteNetlinkMessage::NewRoute(route) => local_network(route).map(AddressChange::Network),
        RouteNetlinkMessage::DelRoute(route) => local_network(route).map(|_| AddressChange::Other),
        // An address was removed.
        _ => Some(AddressChange::Other),
    }
}

/// `None` for a message without an address.
fn interface_address(message: &AddressMessage) -> Option<InterfaceAddress> {
    let (mut address, mut local, mut broadcast) = (None, None, None);
    for attribute in &message.attributes {
        match attribute {
            AddressAttribute::Address(ip) => address = Some(*ip),
            AddressAttribute::Local(ip) => local = Some(*ip),
            AddressAttribute::Broadcast(ip) => broadcast = Some(*ip),
            _ => {}
        }
    }
    let network = address.or(local)?;
    Some(InterfaceAddress {
        // IPv6 has IFA_LOCAL on point-to-point links only, IPv4 always (rtnetlink(7)).
        own: local.unwrap_or(network),
        network,
        prefix_len: message.header.prefix_len,
        broadcast,
    })
}

const BIND_CALL: &str = "bind(NETLINK_ROUTE, RTNLGRP_IPV4_IFADDR, RTNLGRP_IPV4_ROUTE, …)";
const GROUPS: [MulticastGroup; 4] = [
    MulticastGroup::Ipv4Ifaddr,
    MulticastGroup::Ipv6Ifaddr,
    MulticastGroup::Ipv4Route,
    MulticastGroup::Ipv6Route,
];
