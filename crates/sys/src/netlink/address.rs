//! The addresses of the interfaces, and word when they change.

use std::io;
use std::net::{IpAddr, Ipv4Addr};

use futures_util::StreamExt;
use futures_util::future::join;
use rtnetlink::packet_core::NetlinkPayload;
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::packet_route::address::{AddressAttribute, AddressMessage};
use rtnetlink::{MulticastGroup, new_multicast_connection};
use tokio::sync::mpsc::{self, error::TrySendError};
use tokio::task::AbortHandle;

use super::route::{LocalNetwork, local_network};
use super::{Netlink, all};
use crate::{NameCall, Result};

/// One address of one interface (`ip address`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InterfaceAddress {
    /// The host's own address.
    pub own: IpAddr,
    /// An address of the network it stands in: `own`, or the far end on a point-to-point link.
    pub network: IpAddr,
    /// Length of the network's prefix, in bits.
    pub prefix: u8,
    /// The broadcast address, where one was set. It need not be that of the prefix.
    pub broadcast: Option<Ipv4Addr>,
}

impl Netlink {
    /// The addresses of all interfaces of this network namespace, up or down. Needs no capability.
    pub async fn addresses(&self) -> Result<Vec<InterfaceAddress>> {
        let messages = all(self.handle.address().get().execute(), "RTM_GETADDR").await?;
        Ok(messages.iter().filter_map(read).collect())
    }
}

/// Word from the kernel that an interface, or the table `local` ([`Netlink::local_networks`]), gained or
/// lost an address. Needs no capability.
#[derive(Debug)]
pub struct AddressMonitor {
    changes: mpsc::Receiver<AddressChange>,
    pump: AbortHandle,
}

/// What has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddressChange {
    /// An interface has this address now.
    Address(InterfaceAddress),
    /// These addresses are local by a route now.
    Network(LocalNetwork),
    /// Something went, or the kernel had no room to say what has changed: read all of it again.
    Other,
}

impl AddressMonitor {
    /// Subscribes. Changes from now on are told, so subscribe first and read afterwards. Must be
    /// called inside a tokio runtime.
    pub fn subscribe() -> Result<Self> {
        let (connection, _, mut messages) = new_multicast_connection(&GROUPS)
            .call("bind(NETLINK_ROUTE, RTNLGRP_IPV4_IFADDR, RTNLGRP_IPV4_ROUTE, …)")?;
        let (tell, changes) = mpsc::channel(MAX_UNREAD);
        let forward = async move {
            while let Some((message, _)) = messages.next().await {
                let Some(change) = change(&message.payload) else {
                    continue;
                };
                // As long as the queue is full, whoever reads it has to read all of it again in any case.
                if let Err(TrySendError::Closed(_)) = tell.try_send(change) {
                    return;
                }
            }
        };
        let pump = tokio::spawn(join(connection, forward)).abort_handle();
        Ok(Self { changes, pump })
    }

    /// Waits until something has changed, or may have. More may have changed than is said: whoever has seen a change
    /// reads all of it again once there is no other.
    ///
    /// Safe to cancel. An error means that the socket is gone.
    pub async fn next(&mut self) -> Result<AddressChange> {
        self.changes
            .recv()
            .await
            .ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))
            .call("recv(NETLINK_ROUTE)")
    }
}

impl Drop for AddressMonitor {
    fn drop(&mut self) {
        self.pump.abort();
    }
}

/// `None` for what is not about addresses: on a router other routes come and go all the time.
fn change(word: &NetlinkPayload<RouteNetlinkMessage>) -> Option<AddressChange> {
    let NetlinkPayload::InnerMessage(word) = word else {
        return Some(AddressChange::Other);
    };
    match word {
        RouteNetlinkMessage::NewAddress(address) => {
            Some(read(address).map_or(AddressChange::Other, AddressChange::Address))
        }
        RouteNetlinkMessage::NewRoute(route) => local_network(route).map(AddressChange::Network),
        RouteNetlinkMessage::DelRoute(route) => local_network(route).map(|_| AddressChange::Other),
        _ => Some(AddressChange::Other),
    }
}

fn read(message: &AddressMessage) -> Option<InterfaceAddress> {
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
        // IPv6 gives IFA_LOCAL on point-to-point links only, IPv4 always (rtnetlink(7)).
        own: local.unwrap_or(network),
        network,
        prefix: message.header.prefix_len,
        broadcast,
    })
}

/// Changes that were not read yet.
const MAX_UNREAD: usize = 4096;
const GROUPS: [MulticastGroup; 4] = [
    MulticastGroup::Ipv4Ifaddr,
    MulticastGroup::Ipv6Ifaddr,
    MulticastGroup::Ipv4Route,
    MulticastGroup::Ipv6Route,
];
