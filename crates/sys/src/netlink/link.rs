//! Interfaces: loopback, which is down in a new network namespace, and those that carry Ethernet frames.

use std::net::IpAddr;

use rtnetlink::LinkUnspec;
use rtnetlink::packet_route::link::{LinkAttribute, LinkLayerType, LinkMessage};

use super::handle::{LOOPBACK, Netlink, collect_dump, with_call};
use super::route::prefix_bits;
use crate::Result;

impl Netlink {
    /// Sets the loopback interface up, which also assigns 127.0.0.1 and `::1`. Needs CAP_NET_ADMIN.
    pub async fn set_loopback_up(&self) -> Result<()> {
        let up = LinkUnspec::new_with_index(LOOPBACK).up().build();
        with_call(self.handle.link().set(up).execute().await, "RTM_NEWLINK")
    }

    /// Adds an address to the loopback interface. Needs CAP_NET_ADMIN.
    ///
    /// # Errors
    ///
    /// EPERM without the capability, EEXIST where the interface has the address already.
    pub async fn add_loopback_address(&self, address: IpAddr) -> Result<()> {
        let request = self.handle.address();
        let request = request.add(LOOPBACK, address, prefix_bits(address));
        with_call(request.execute().await, "RTM_NEWADDR")
    }

    /// The names of all interfaces of this network namespace that put an Ethernet header before a packet, up or
    /// down, including loopback; not those of tunnels that carry bare IP. Needs no capability.
    pub async fn ethernet_interfaces(&self) -> Result<Vec<String>> {
        let links = collect_dump(self.handle.link().get().execute(), "RTM_GETLINK").await?;
        Ok(links
            .into_iter()
            .filter(has_ethernet_header)
            .filter_map(interface_name)
            .collect())
    }
}

fn has_ethernet_header(link: &LinkMessage) -> bool {
    matches!(
        link.header.link_layer_type,
        LinkLayerType::Ether | LinkLayerType::Loopback
    )
}

fn interface_name(link: LinkMessage) -> Option<String> {
    link.attributes
        .into_iter()
        .find_map(|attribute| match attribute {
            LinkAttribute::IfName(name) => Some(name),
            _ => None,
        })
}
