//! The addresses of this host, which no remote client can have.
//!
//! A header that claims one of them as its source would make the backend believe that the connection comes from this
//! host itself. Network and broadcast addresses of this host's networks are special, too: a socket bound to a broadcast
//! address connects from another address, which the kernel chooses.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use parking_lot::RwLock;
use peername_proto::HostAddress;
use peername_sys::Result;
use peername_sys::netlink::{
    AddressChange, AddressMonitor, InterfaceAddress, LocalNetwork, Netlink,
};
use tokio::time::sleep;

use crate::access::network_set::NetworkSet;

/// This host's own addresses, and the network and broadcast addresses of its interfaces, as last reported over netlink.
/// Clones share one table.
///
/// An address is this host's even if no interface has it: a route of type `local` in the kernel's table `local` is
/// enough (`ip route add local 198.51.100.0/24 dev lo`), and Google's guest agent adds one for every forwarding rule.
/// Such routes in other tables don't count: the routes that bring replies back declare every address local.
#[derive(Debug, Clone)]
pub struct OwnAddresses(Arc<RwLock<AddressTable>>);

#[derive(Debug, Default)]
struct AddressTable {
    /// A host has few addresses; comparing the keys of a tree is faster than hashing.
    addresses: BTreeMap<IpAddr, HostAddress>,
    /// Whole networks that are local: 127.0.0.0/8, and rarely more.
    networks: NetworkSet,
}

impl OwnAddresses {
    /// Reads the addresses of the calling thread's network namespace from the kernel. Needs no capability, but a tokio
    /// runtime. [`OwnAddresses::watch`] keeps the table up to date.
    pub async fn read() -> Result<Self> {
        let table = dump_addresses(&Netlink::open()?).await?;
        Ok(Self(Arc::new(RwLock::new(table))))
    }

    /// Creates a table of the given addresses, without reading those of the kernel.
    pub fn fixed(addresses: impl IntoIterator<Item = (IpAddr, HostAddress)>) -> Self {
        Self(Arc::new(RwLock::new(AddressTable {
            addresses: addresses.into_iter().collect(),
            networks: NetworkSet::default(),
        })))
    }

    /// Looks an address up; `None` when it is not special on this host. An IPv4-mapped address is looked up as the IPv4
    /// address.
    ///
    /// Cheap enough for every connection: one uncontended lock, a few comparisons, and a lookup among the few networks.
    pub fn kind_of(&self, address: IpAddr) -> Option<HostAddress> {
        let address = address.to_canonical();
        let table = self.0.read();
        table
            .addresses
            .get(&address)
            .copied()
            .or_else(|| table.networks.contains(address).then_some(HostAddress::Own))
    }

    /// Whether the address is loopback or another address of this host.
    pub fn is_on_this_host(&self, address: IpAddr) -> bool {
        address.is_loopback() || self.kind_of(address) == Some(HostAddress::Own)
    }

    /// Keeps the table up to date, and never returns. Logs an error, and tries again.
    pub async fn keep_watching(self) {
        loop {
            let Err(error) = self.watch().await;
            tracing::warn!("can't watch this host's addresses: {error}; trying again");
            sleep(WATCH_RETRY_DELAY).await;
        }
    }

    /// Keeps the table up to date. A new address is in the table as soon as the kernel has reported it. A removed
    /// address leaves the table with the next complete dump.
    ///
    /// # Errors
    ///
    /// Returns only on an error: the netlink sockets can't be opened, or reading from them fails.
    pub async fn watch(&self) -> Result<std::convert::Infallible> {
        let (netlink, mut changes) = (Netlink::open()?, AddressMonitor::subscribe()?);
        loop {
            // Dumps once before it waits: an address may have been added between `read` and `subscribe`.
            let mut during_dump = Vec::new();
            let table = {
                let mut dump = pin!(dump_addresses(&netlink));
                loop {
                    tokio::select! {
                        biased;
                        change = changes.next() => {
                            let change = change?;
                            self.0.write().apply(&change);
                            during_dump.push(change);
                        }
                        table = &mut dump => break table?,
                    }
                }
            };
            self.replace(table, &during_dump);
            if during_dump.is_empty() {
                let change = changes.next().await?;
                self.0.write().apply(&change);
            }
        }
    }

    /// Replaces the table by a dump. The dump may lack addresses that were added meanwhile, so they are added again.
    /// Addresses that were removed meanwhile leave the table with the next dump.
    fn replace(&self, dump: AddressTable, during_dump: &[AddressChange]) {
        let mut table = self.0.write();
        *table = dump;
        for change in during_dump {
            table.apply(change);
        }
    }
}

impl AddressTable {
    /// Adds the address or network that a change has added. Removals are left to the next dump.
    fn apply(&mut self, change: &AddressChange) {
        match change {
            AddressChange::Address(address) => {
                for ip in network_and_broadcast(address) {
                    self.addresses
                        .entry(ip)
                        .or_insert(HostAddress::NetworkOrBroadcast);
                }
                self.addresses.insert(address.own, HostAddress::Own);
            }
            AddressChange::Network(network) => self.add_network(*network),
            AddressChange::Other => {}
        }
    }

    fn add_network(
        &mut self,
        LocalNetwork {
            address,
            prefix_len,
        }: LocalNetwork,
    ) {
        // The route of `exec --mode netns`, which makes every address local: it does not tell clients from this host.
        if prefix_len == 0 {
            return;
        }
        match IpNet::new(address, prefix_len) {
            Ok(network) if prefix_len < network.max_prefix_len() => self.networks.insert(network),
            _ => drop(self.addresses.insert(address, HostAddress::Own)),
        }
    }
}

async fn dump_addresses(netlink: &Netlink) -> Result<AddressTable> {
    let addresses = netlink.addresses().await?;
    let mut table = AddressTable::default();
    for ip in addresses.iter().flat_map(network_and_broadcast) {
        table.addresses.insert(ip, HostAddress::NetworkOrBroadcast);
    }
    // Inserted last: an address that is both, as in the small network of a tunnel, is the host's own.
    for address in &addresses {
        table.addresses.insert(address.own, HostAddress::Own);
    }
    for network in netlink.local_networks().await? {
        table.add_network(network);
    }
    Ok(table)
}

/// The network and broadcast addresses of an interface's network; for IPv6 its subnet-router anycast address.
fn network_and_broadcast(address: &InterfaceAddress) -> impl Iterator<Item = IpAddr> {
    let by_prefix = match address.network {
        IpAddr::V4(ip) => first_and_last(ip, address.prefix_len).map(|end| end.map(IpAddr::V4)),
        IpAddr::V6(ip) => [
            subnet_router_anycast(ip, address.prefix_len).map(IpAddr::V6),
            None,
        ],
    };
    [address.broadcast.map(IpAddr::V4)]
        .into_iter()
        .chain(by_prefix)
        .flatten()
}

/// The network and the broadcast address. A /31 has neither (RFC 3021), and a /32 is one host.
fn first_and_last(address: Ipv4Addr, prefix_len: u8) -> [Option<Ipv4Addr>; 2] {
    if prefix_len > 30 {
        return [None, None];
    }
    let hosts = u32::MAX >> prefix_len;
    let bits = address.to_bits();
    [
        Some(Ipv4Addr::from_bits(bits & !hosts)),
        Some(Ipv4Addr::from_bits(bits | hosts)),
    ]
}

/// The subnet-router anycast address (RFC 4291, section 2.6.1). A /127 has none (RFC 6164).
fn subnet_router_anycast(address: Ipv6Addr, prefix_len: u8) -> Option<Ipv6Addr> {
    let hosts = u128::MAX.checked_shr(prefix_len.into())?;
    (prefix_len < 127).then(|| Ipv6Addr::from_bits(address.to_bits() & !hosts))
}

const WATCH_RETRY_DELAY: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    /// The special addresses of an interface's address, of which `network` is the peer's on a point-to-point link.
    fn special_addresses(own: &str, network: &str, prefix_len: u8, broadcast: &str) -> String {
        let address = InterfaceAddress {
            own: own.parse().unwrap(),
            network: network.parse().unwrap(),
            prefix_len,
            broadcast: broadcast.parse().ok(),
        };
        let mut all: Vec<_> = network_and_broadcast(&address)
            .map(|ip| ip.to_string())
            .collect();
        all.sort();
        all.dedup();
        all.join(" ")
    }

    #[test]
    fn ends_of_a_network_and_the_broadcast_address_are_special() {
        for (own, network, prefix_len, broadcast, special) in [
            (
                "10.1.2.3",
                "10.1.2.3",
                24,
                "10.1.2.255",
                "10.1.2.0 10.1.2.255",
            ),
            // Configured besides that of the prefix.
            (
                "10.1.2.3",
                "10.1.2.3",
                30,
                "10.1.2.9",
                "10.1.2.0 10.1.2.3 10.1.2.9",
            ),
            // A network of at most two hosts has none.
            ("10.0.0.0", "10.0.0.0", 31, "", ""),
            ("10.0.0.7", "10.0.0.7", 32, "", ""),
            ("fd00::", "fd00::", 127, "", ""),
            // A point-to-point link has the network of its peer.
            (
                "10.0.0.1",
                "192.168.7.2",
                24,
                "",
                "192.168.7.0 192.168.7.255",
            ),
            // IPv6 has the subnet-router anycast address.
            ("fd00::5", "fd00::5", 64, "", "fd00::"),
            ("::1", "::1", 128, "", ""),
            // The shortest prefix does not overflow.
            ("9.9.9.9", "9.9.9.9", 0, "", "0.0.0.0 255.255.255.255"),
            ("fd00::5", "fd00::5", 0, "", "::"),
        ] {
            let found = special_addresses(own, network, prefix_len, broadcast);
            assert_eq!(found, special, "{own}, {network}/{prefix_len}");
        }
    }
}
