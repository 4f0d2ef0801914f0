//! The addresses of this host, which no client can have.
//!
//! A header that claims one of them as its source would make the backend believe that this host
//! itself calls. The same goes for the first and last address of every network this host stands in:
//! a socket bound to a broadcast address connects from an address of the kernel's choosing instead.

use std::collections::HashSet;
use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use peername_sys::Result;
use peername_sys::netlink::{AddressChanges, InterfaceAddress, Netlink};

/// This host's own unicast addresses, and the network and broadcast addresses of its interfaces, as
/// of the last look. Clones share what they know.
///
/// Only the addresses that interfaces have: of 127.0.0.0/8 usually 127.0.0.1 and the two ends. A
/// policy that means all of loopback must say so itself.
///
/// Asking is cheap enough for every connection: one uncontended lock and one hash. An IPv4-mapped
/// address is looked up as the IPv4 address it stands for.
#[derive(Debug, Clone)]
pub struct OwnAddresses(Arc<RwLock<Known>>);

impl OwnAddresses {
    /// Asks the kernel, for the network namespace of the calling thread. Needs no capability, but a
    /// tokio runtime. Keep it true with [`OwnAddresses::watch`].
    pub async fn read() -> Result<Self> {
        Ok(Self(Arc::new(RwLock::new(ask().await?))))
    }

    /// Whether it is the address of an interface.
    pub fn is_own(&self, address: IpAddr) -> bool {
        self.known().own.contains(&address.to_canonical())
    }

    /// Whether it is a network or broadcast address and no host has it, this one neither.
    pub fn is_broadcast(&self, address: IpAddr) -> bool {
        let (known, address) = (self.known(), address.to_canonical());
        known.ends.contains(&address) && !known.own.contains(&address)
    }

    /// Whether it is either.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.is_own(address) || self.is_broadcast(address)
    }

    /// Follows the changes of this network namespace and returns only when it no longer can, with
    /// the reason. Until then a change is known within a moment of its happening.
    pub async fn watch(&self) -> Result<Infallible> {
        let mut changes = AddressChanges::subscribe()?;
        loop {
            // Reads once before it waits: an address may have come between `read` and `subscribe`.
            let now = ask().await?;
            *self.0.write().unwrap_or_else(PoisonError::into_inner) = now;
            changes.changed().await?;
        }
    }

    fn known(&self) -> RwLockReadGuard<'_, Known> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug, Default)]
struct Known {
    own: HashSet<IpAddr>,
    /// First and last addresses of networks, and what else was set as a broadcast address.
    ends: HashSet<IpAddr>,
}

async fn ask() -> Result<Known> {
    let mut known = Known::default();
    for address in Netlink::open()?.addresses().await? {
        known.own.insert(address.own);
        known.ends.extend(ends(&address));
    }
    Ok(known)
}

fn ends(address: &InterfaceAddress) -> impl Iterator<Item = IpAddr> {
    let of_prefix = match address.network {
        IpAddr::V4(ip) => ends_v4(ip, address.prefix).map(|end| end.map(IpAddr::V4)),
        IpAddr::V6(ip) => [subnet_router(ip, address.prefix).map(IpAddr::V6), None],
    };
    of_prefix
        .into_iter()
        .chain([address.broadcast.map(IpAddr::V4)])
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

    fn ends_of(network: &str, prefix: u8, broadcast: Option<&str>) -> Vec<String> {
        let network = network.parse().unwrap();
        let address = InterfaceAddress {
            own: network,
            network,
            prefix,
            broadcast: broadcast.map(|text| text.parse().unwrap()),
        };
        let mut all: Vec<_> = ends(&address).map(|ip| ip.to_string()).collect();
        all.sort();
        all.dedup();
        all
    }

    #[test]
    fn an_ipv4_network_has_two_ends() {
        assert_eq!(
            ends_of("10.1.2.3", 24, Some("10.1.2.255")),
            ["10.1.2.0", "10.1.2.255"]
        );
    }

    #[test]
    fn a_broadcast_address_that_is_not_the_prefixs_counts_beside_it() {
        assert_eq!(
            ends_of("10.1.2.2", 30, Some("10.1.2.9")),
            ["10.1.2.0", "10.1.2.3", "10.1.2.9"]
        );
    }

    #[test]
    fn two_hosts_alone_have_no_broadcast() {
        assert_eq!(ends_of("10.0.0.0", 31, None), [""; 0]);
        assert_eq!(ends_of("10.0.0.7", 32, None), [""; 0]);
        assert_eq!(ends_of("fd00::", 127, None), [""; 0]);
    }

    #[test]
    fn an_ipv6_network_has_an_anycast_address() {
        assert_eq!(ends_of("fd00::5", 64, None), ["fd00::"]);
        assert_eq!(ends_of("::1", 128, None), [""; 0]);
    }

    #[test]
    fn the_widest_prefix_does_not_overflow() {
        assert_eq!(ends_of("9.9.9.9", 0, None), ["0.0.0.0", "255.255.255.255"]);
        assert_eq!(ends_of("fd00::5", 0, None), ["::"]);
    }
}
