//! The addresses of this host, which no client can have as source.
//!
//! A header that claims one of them would make the backend believe that this host itself is the client. The same holds for
//! the first and last address of every network of this host's interfaces: a socket bound to a broadcast address connects
//! from an address that the kernel chooses instead.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::pin::pin;
use std::sync::{Arc, PoisonError, RwLock, RwLockWriteGuard};

use ipnet::IpNet;
use peername_sys::Result;
use peername_sys::netlink::{
    AddressChange, AddressMonitor, InterfaceAddress, LocalNetwork, Netlink,
};

/// This host's own addresses, and the network and broadcast addresses of its interfaces, as of the last read. Clones share
/// them.
///
/// An address can be this host's without an interface: a route of type `local` in the kernel's table `local` is enough
/// (`ip route add local 198.51.100.0/24 dev lo`), and Google's guest agent adds one for every forwarding rule. Such routes
/// in other tables don't count: those that bring replies back make every address local.
#[derive(Debug, Clone)]
pub struct OwnAddresses(Arc<RwLock<Known>>);

#[derive(Debug, Default)]
struct Known {
    /// A host has few: comparing is faster than hashing.
    single: BTreeMap<IpAddr, LocalKind>,
    /// Whole networks that are local, 127.0.0.0/8 among them: rarely more.
    networks: Vec<IpNet>,
}

/// Why no client can have an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalKind {
    /// An interface has it, or it is local by a route.
    Own,
    /// The first or last address of a network that an interface is in: no single host's.
    End,
}

impl OwnAddresses {
    /// Reads the addresses in the network namespace of the calling thread. Needs no capability, but a tokio runtime. Keep
    /// them current with [`OwnAddresses::watch`].
    ///
    /// # Errors
    ///
    /// A netlink call fails.
    pub async fn read() -> Result<Self> {
        let known = ask(&Netlink::open()?).await?;
        Ok(Self(Arc::new(RwLock::new(known))))
    }

    /// Looks up a claimed source; `None` where a client may have it. An IPv4-mapped address is looked up as the IPv4
    /// address that it maps.
    ///
    /// Cheap enough for every connection: one uncontended lock, a few comparisons, and a scan of the few networks.
    pub fn kind_of(&self, address: IpAddr) -> Option<LocalKind> {
        let address = address.to_canonical();
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let single = known.single.get(&address).copied();
        let is_within = || {
            known
                .networks
                .iter()
                .any(|network| network.contains(&address))
        };
        single.or_else(|| is_within().then_some(LocalKind::Own))
    }

    /// Watches the addresses of this network namespace. A new address is added on the kernel's notification; a removed one
    /// goes with the read of all that follows.
    ///
    /// # Errors
    ///
    /// Returns only where a netlink call fails.
    pub async fn watch(&self) -> Result<std::convert::Infallible> {
        let (netlink, mut changes) = (Netlink::open()?, AddressMonitor::subscribe()?);
        loop {
            // Reads once before it waits: an address may have been added between `read` and `subscribe`.
            let mut new = Vec::new();
            let now = {
                let mut asking = pin!(ask(&netlink));
                loop {
                    tokio::select! {
                        biased;
                        change = changes.next() => {
                            let change = change?;
                            self.write().add(&change);
                            new.push(change);
                        }
                        now = &mut asking => break now?,
                    }
                }
            };
            self.replace(now, &new);
            if new.is_empty() {
                let change = changes.next().await?;
                self.write().add(&change);
            }
        }
    }

    /// Replaces the addresses by those read. An address added during the read may be missing there, so those are added
    /// again; one removed during the read goes with the next.
    fn replace(&self, now: Known, new: &[AddressChange]) {
        let mut known = self.write();
        *known = now;
        new.iter().for_each(|change| known.add(change));
    }

    fn write(&self) -> RwLockWriteGuard<'_, Known> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    /// Adds an address or network. Removed ones are found by reading all again.
    fn add(&mut self, change: &AddressChange) {
        match change {
            AddressChange::Address(address) => {
                for end in ends(address) {
                    self.single.entry(end).or_insert(LocalKind::End);
                }
                self.single.insert(address.own, LocalKind::Own);
            }
            AddressChange::Network(network) => self.add_network(*network),
            AddressChange::Other => {}
        }
    }

    fn add_network(&mut self, LocalNetwork { address, prefix }: LocalNetwork) {
        match IpNet::new(address, prefix) {
            // A network of all addresses, as `exec --mode netns` makes one: then an address does not distinguish a
            // client from this host.
            _ if prefix == 0 => {}
            Ok(network) if prefix < network.max_prefix_len() => self.networks.push(network),
            _ => drop(self.single.insert(address, LocalKind::Own)),
        }
    }
}

async fn ask(netlink: &Netlink) -> Result<Known> {
    let addresses = netlink.addresses().await?;
    let mut known = Known::default();
    let ends = addresses
        .iter()
        .flat_map(ends)
        .map(|end| (end, LocalKind::End));
    let own = addresses
        .iter()
        .map(|address| (address.own, LocalKind::Own));
    // An address that is both, as the ends of a small tunnel's network may be, counts as the host's own.
    known.single.extend(ends.chain(own));
    let networks = netlink.local_networks().await?;
    networks
        .into_iter()
        .for_each(|network| known.add_network(network));
    Ok(known)
}

fn ends(address: &InterfaceAddress) -> impl Iterator<Item = IpAddr> {
    let ends = match address.network {
        IpAddr::V4(ip) => ends_v4(ip, address.prefix).map(|end| end.map(IpAddr::V4)),
        IpAddr::V6(ip) => [subnet_router(ip, address.prefix).map(IpAddr::V6), None],
    };
    [address.broadcast.map(IpAddr::V4)]
        .into_iter()
        .chain(ends)
        .flatten()
}

/// Network and broadcast address. A /31 has neither (RFC 3021), and a /32 is one host.
fn ends_v4(address: Ipv4Addr, prefix: u8) -> [Option<Ipv4Addr>; 2] {
    if prefix > 30 {
        return [None, None];
    }
    let hosts = u32::MAX >> prefix;
    let bits = address.to_bits();
    [
        Some(Ipv4Addr::from_bits(bits & !hosts)),
        Some(Ipv4Addr::from_bits(bits | hosts)),
    ]
}

/// The subnet-router anycast address (RFC 4291, section 2.6.1). A /127 has none (RFC 6164).
fn subnet_router(address: Ipv6Addr, prefix: u8) -> Option<Ipv6Addr> {
    let hosts = u128::MAX.checked_shr(prefix.into())?;
    (prefix < 127).then(|| Ipv6Addr::from_bits(address.to_bits() & !hosts))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(own: &str, network: &str, prefix: u8, broadcast: Option<&str>) -> Vec<String> {
        let address = InterfaceAddress {
            own: own.parse().unwrap(),
            network: network.parse().unwrap(),
            prefix,
            broadcast: broadcast.map(|text| text.parse().unwrap()),
        };
        let mut all: Vec<_> = ends(&address).map(|ip| ip.to_string()).collect();
        all.sort();
        all.dedup();
        all
    }

    #[test]
    fn network_adds_both_its_ends() {
        assert_eq!(
            set("10.1.2.3", "10.1.2.3", 24, Some("10.1.2.255")),
            ["10.1.2.0", "10.1.2.255"]
        );
    }

    #[test]
    fn broadcast_address_other_than_the_prefixs_is_added() {
        assert_eq!(
            set("10.1.2.3", "10.1.2.3", 30, Some("10.1.2.9")),
            ["10.1.2.0", "10.1.2.3", "10.1.2.9"]
        );
    }

    #[test]
    fn point_to_point_prefixes_have_no_broadcast() {
        assert!(set("10.0.0.0", "10.0.0.0", 31, None).is_empty());
        assert!(set("10.0.0.7", "10.0.0.7", 32, None).is_empty());
        assert!(set("fd00::", "fd00::", 127, None).is_empty());
    }

    #[test]
    fn point_to_point_link_adds_the_ends_of_the_peers_network() {
        assert_eq!(
            set("10.0.0.1", "192.168.7.2", 24, None),
            ["192.168.7.0", "192.168.7.255"]
        );
    }

    #[test]
    fn ipv6_network_adds_its_anycast_address() {
        assert_eq!(set("fd00::5", "fd00::5", 64, None), ["fd00::"]);
        assert!(set("::1", "::1", 128, None).is_empty());
    }

    #[test]
    fn the_widest_prefix_does_not_overflow() {
        assert_eq!(
            set("9.9.9.9", "9.9.9.9", 0, None),
            ["0.0.0.0", "255.255.255.255"]
        );
        assert_eq!(set("fd00::5", "fd00::5", 0, None), ["::"]);
    }
}
