//! The addresses of interfaces, and notifications of their changes.

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
    /// An address of its network: `own`, or the far end on a point-to-point link.
    pub network: IpAddr,
    /// Length of the network's prefix, in bits.
    pub prefix: u8,
    /// The broadcast address, where one was set. It need not be that of the prefix.
    pub broadcast: Option<Ipv4Addr>,
}

impl Netlink {
    /// The addresses of all interfaces of this network namespace, up or down. Needs no capability.
    ///
    /// # Errors
    ///
    /// Those of the netlink socket: none in normal operation.
    pub async fn addresses(&self) -> Result<Vec<InterfaceAddress>> {
        let messages = all(self.handle.address().get().execute(), "RTM_GETADDR").await?;
        Ok(messages.iter().filter_map(read).collect())
    }
}

/// Subscribes to changes of addresses on interfaces and in the table `local` ([`Netlink::local_networks`]), like `ip
/// monitor`. Needs no capability.
#[derive(Debug)]
pub struct AddressMonitor {
    changes: mpsc::Receiver<AddressChange>,
    pump: AbortHandle,
}

/// A change.
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
    ///
    /// # Errors
    ///
    /// EMFILE, ENFILE or ENOMEM; EPERM or EAFNOSUPPORT where a sandbox forbids netlink.
    pub fn subscribe() -> Result<Self> {
        let (connection, _, mut messages) = new_multicast_connection(&GROUPS)
            .call("bind(NETLINK_ROUTE, RTNLGRP_IPV4_IFADDR, RTNLGRP_IPV4_ROUTE, …)")?;
        let (tell, changes) = mpsc::channel(MAX_UNREAD);
        let forward = async move {
            while let Some((message, _)) = messages.next().await {
                let Some(change) = change(&message.payload) else {
                    continue;
                };
                // A full queue may drop changes: its reader reads all addresses again in any case.
                if let Err(TrySendError::Closed(_)) = tell.try_send(change) {
                    return;
                }
            }
        };
        let pump = tokio::spawn(join(connection, forward)).abort_handle();
        Ok(Self { changes, pump })
    }

    /// Waits for the next change. Changes may be coalesced: read all addresses again once the queue is empty.
    ///
    /// Cancel-safe.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::UnexpectedEof`] when the socket is closed.
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

/// `None` for a change that does not concern addresses: on a router other routes change all the time.
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
        // IPv6 has IFA_LOCAL on point-to-point links only, IPv4 always (rtnetlink(7)).
        own: local.unwrap_or(network),
        network,
        prefix: message.header.prefix_len,
        broadcast,
    })
}

/// Capacity of the queue of unread changes.
const MAX_UNREAD: usize = 4096;
const GROUPS: [MulticastGroup; 4] = [
    MulticastGroup::Ipv4Ifaddr,
    MulticastGroup::Ipv6Ifaddr,
    MulticastGroup::Ipv4Route,
    MulticastGroup::Ipv6Route,
];
