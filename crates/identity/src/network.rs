//! Trusted networks (CIDR), and the 128-bit form of addresses, stored as two `u64`.

use core::net::{IpAddr, Ipv6Addr};
use core::sync::atomic::{AtomicU64, Ordering};

/// A trusted network (CIDR): its hosts may send headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    address: u128,
    /// Prefix length in bits, out of 128.
    prefix: u32,
}

impl Network {
    /// Creates a network. `prefix` is a number of bits of the address's own family; `None` if that has fewer bits.
    pub fn new(address: IpAddr, prefix: u8) -> Option<Self> {
        let (bits, mapped) = match address {
            IpAddr::V4(_) => (32, MAPPED_PREFIX),
            IpAddr::V6(_) => (128, 0),
        };
        let prefix = u32::from(prefix);
        (prefix <= bits).then(|| Self {
            address: to_bits(address),
            prefix: prefix.saturating_add(mapped),
        })
    }

    /// Whether the network contains the address. An IPv6 network contains no IPv4 address, mapped or not.
    pub fn contains(self, address: IpAddr) -> bool {
        let is_ipv4 = self.prefix >= MAPPED_PREFIX && is_mapped(self.address);
        if is_ipv4 != is_mapped(to_bits(address)) {
            return false;
        }
        let difference = self.address ^ to_bits(address);
        // A prefix of 0 shifts by all 128 bits, which is `None`: every address matches.
        let host_bits = 128_u32.saturating_sub(self.prefix);
        difference.checked_shr(host_bits).unwrap_or_default() == 0
    }

    pub(crate) fn load([high, low, prefix]: &[AtomicU64; 3]) -> Self {
        let prefix = u32::try_from(prefix.load(Ordering::Relaxed)).unwrap_or(u32::MAX);
        Self {
            address: join(high.load(Ordering::Relaxed), low.load(Ordering::Relaxed)),
            prefix: prefix.min(128),
        }
    }

    pub(crate) fn store(self, [high, low, prefix]: &[AtomicU64; 3]) {
        let (high_bits, low_bits) = split(self.address);
        high.store(high_bits, Ordering::Relaxed);
        low.store(low_bits, Ordering::Relaxed);
        prefix.store(self.prefix.into(), Ordering::Relaxed);
    }
}

/// Converts an address to bits; IPv4 is mapped into IPv6.
pub(crate) fn to_bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().to_bits(),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

fn is_mapped(address: u128) -> bool {
    address >> 32 == 0xffff
}

/// Converts bits to an address; a mapped IPv4 address becomes IPv4 again.
pub(crate) fn from_bits(bits: u128) -> IpAddr {
    Ipv6Addr::from_bits(bits).to_canonical()
}

pub(crate) fn split(bits: u128) -> (u64, u64) {
    let [a, b, c, d, e, f, g, h, rest @ ..] = bits.to_be_bytes();
    (
        u64::from_be_bytes([a, b, c, d, e, f, g, h]),
        u64::from_be_bytes(rest),
    )
}

pub(crate) fn join(high: u64, low: u64) -> u128 {
    (u128::from(high) << 64) | u128::from(low)
}

/// The length of the prefix of IPv4 addresses that are mapped into IPv6.
const MAPPED_PREFIX: u32 = 96;

#[cfg(test)]
mod tests {
    use super::*;

    fn network(address: &str, prefix: u8) -> Network {
        Network::new(address.parse().unwrap(), prefix).unwrap()
    }

    #[test]
    fn network_contains_the_addresses_of_its_family_and_prefix() {
        let ten = network("10.0.0.0", 8);
        assert!(ten.contains("10.200.0.1".parse().unwrap()));
        assert!(ten.contains("::ffff:10.200.0.1".parse().unwrap()));
        assert!(!ten.contains("11.0.0.1".parse().unwrap()));
        assert!(!ten.contains("a00::1".parse().unwrap()));
        let all = network("::", 0);
        assert!(all.contains("2001:db8::1".parse().unwrap()));
        assert!(!all.contains("192.0.2.1".parse().unwrap()));
        assert!(!all.contains("::ffff:192.0.2.1".parse().unwrap()));
        assert!(network("0.0.0.0", 0).contains("192.0.2.1".parse().unwrap()));
        assert!(!network("0.0.0.0", 0).contains("2001:db8::1".parse().unwrap()));
        assert!(network("192.0.2.1", 32).contains("192.0.2.1".parse().unwrap()));
        assert!(!network("192.0.2.1", 32).contains("192.0.2.0".parse().unwrap()));
        assert_eq!(Network::new("10.0.0.0".parse().unwrap(), 33), None);
    }
}
