//! The addresses of the interfaces, and word when they change.

use std::io;
use std::net::{IpAddr, Ipv4Addr};

use futures_util::StreamExt;
use futures_util::future::join;
use rtnetlink::packet_core::NetlinkPayload;
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::packet_route::address::{AddressAttribute, AddressMessage};
use rtnetlink::{MulticastGroup, new_multicast_connection};
use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::route::local_network;
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
pub struct AddressChanges {
    changes: watch::Receiver<()>,
    pump: AbortHandle,
}

impl AddressChanges {
    /// Subscribes. Changes from now on are told, so subscribe first and read afterwards. Must be
    /// called inside a tokio runtime.
    pub fn subscribe() -> Result<Self> {
        let (connection, _, mut messages) = new_multicast_connection(&GROUPS)
            .call("bind(NETLINK_ROUTE, RTNLGRP_IPV4_IFADDR, RTNLGRP_IPV4_ROUTE, …)")?;
        let (tell, changes) = watch::channel(());
        let forward = async move {
            while let Some((message, _)) = messages.next().await {
                if is_about_addresses(&message.payload) {
                    tell.send_replace(());
                }
            }
        };
        let pump = tokio::spawn(join(connection, forward)).abort_handle();
        Ok(Self { changes, pump })
    }

    /// Waits until something has changed, or may have: when changes come faster than they are read
    /// the kernel says only that some were lost. Changes that nobody waited for count as one.
    ///
    /// Safe to cancel. An error means that the socket is gone.
    pub async fn changed(&mut self) -> Result<()> {
        self.changes
            .changed()
            .await
            .map_err(|_| io::Error::from(io::ErrorKind::UnexpectedEof))
            .call("recv(NETLINK_ROUTE)")
    }
}

impl Drop for AddressChanges {
    fn drop(&mut self) {
        self.pump.abort();
    }
}

/// On a router other routes come and go all the time.
fn is_about_addresses(word: &NetlinkPayload<RouteNetlinkMessage>) -> bool {
    match word {
        NetlinkPayload::InnerMessage(
            RouteNetlinkMessage::NewRoute(route) | RouteNetlinkMessage::DelRoute(route),
        ) => local_network(route).is_some(),
        _ => true,
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

const GROUPS: [MulticastGroup; 4] = [
    MulticastGroup::Ipv4Ifaddr,
    MulticastGroup::Ipv6Ifaddr,
    MulticastGroup::Ipv4Route,
    MulticastGroup::Ipv6Route,
];
