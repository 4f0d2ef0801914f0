//! The networks of synthetic addresses.

use std::net::{Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// One network of each family. The jail turns each destination in them into a name, so no host with such an address can be
/// reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NameRanges {
    /// IPv4.
    pub v4: Ipv4Net,
    /// IPv6.
    pub v6: Ipv6Net,
}

/// Why networks can't be used for synthetic addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameRangeError {
    /// A network with too few addresses, or so many that hosts would be unreachable.
    #[error("{0}: use an IPv4 network of /8 to /24, and an IPv6 network of /32 to /104")]
    Size(IpNet),
    /// A network that includes the jail's own addresses.
    #[error("{0} includes addresses that the jail has itself")]
    Own(IpNet),
    /// Two networks of the same family.
    #[error("{0} is the second network of its family")]
    Twice(IpNet),
}

impl NameRanges {
    /// Uses these networks, and the default for a family without one.
    pub fn new(networks: &[IpNet]) -> Result<Self, NameRangeError> {
        let mut ranges = Self::default();
        for (nth, network) in networks.iter().enumerate() {
            let network = network.trunc();
            let is_same_family = |other: &IpNet| other.addr().is_ipv4() == network.addr().is_ipv4();
            if networks[..nth].iter().any(is_same_family) {
                return Err(NameRangeError::Twice(network));
            }
            if OWN
                .iter()
                .any(|own| own.contains(&network) || network.contains(own))
            {
                return Err(NameRangeError::Own(network));
            }
            match network {
                IpNet::V4(v4) if (8..=24).contains(&v4.prefix_len()) => ranges.v4 = v4,
                IpNet::V6(v6) if (32..=104).contains(&v6.prefix_len()) => ranges.v6 = v6,
                _ => return Err(NameRangeError::Size(network)),
            }
        }
        Ok(ranges)
    }

    /// The networks.
    #[must_use]
    pub fn networks(self) -> [IpNet; 2] {
        [self.v4.into(), self.v6.into()]
    }
}

impl Default for NameRanges {
    /// Networks without hosts, which look public to programs that refuse private addresses: the test network of AMPRNet
    /// (44.0.0.0/8), which is not routed, and a network in the part of 2000::/3 that IANA has not allocated.
    fn default() -> Self {
        Self {
            v4: Ipv4Net::new_assert(Ipv4Addr::new(44, 128, 0, 0), 16),
            v6: Ipv6Net::new_assert(
                Ipv6Addr::new(0x3e70, 0x6565, 0x726e, 0x616d, 0, 0, 0, 0),
                64,
            ),
        }
    }
}

/// The networks of loopback, of unspecified and multicast addresses, and of the jail's interface.
const OWN: [IpNet; 6] = [
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::LOCALHOST, 8)),
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::UNSPECIFIED, 8)),
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(192, 0, 0, 8), 32)),
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(224, 0, 0, 0), 4)),
    // `::`, `::1` and mapped IPv4 addresses.
    IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::UNSPECIFIED, 64)),
    IpNet::V6(Ipv6Net::new_assert(
        Ipv6Addr::new(0xfd70, 0x6565, 0x726e, 0x616e, 0, 0, 0, 0),
        64,
    )),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(texts: &[&str]) -> Result<NameRanges, NameRangeError> {
        let networks: Vec<IpNet> = texts.iter().map(|text| text.parse().unwrap()).collect();
        NameRanges::new(&networks)
    }

    #[test]
    fn networks_replace_the_default_of_their_family_and_unusable_ones_are_refused() {
        let with_v4 = ranges(&["10.9.0.7/16"]).unwrap();
        assert_eq!(with_v4.v4, "10.9.0.0/16".parse().unwrap());
        assert_eq!(with_v4.v6, NameRanges::default().v6);
        for wrong in [
            "10.0.0.0/25",
            "8.0.0.0/7",
            "2001:db8::/16",
            "2001:db8::/112",
        ] {
            let refused = ranges(&[wrong]);
            assert!(matches!(refused, Err(NameRangeError::Size(_))), "{wrong}");
        }
        for own in ["127.1.0.0/16", "192.0.0.0/16", "::/32", "fd70:6565::/32"] {
            let refused = ranges(&[own]);
            assert!(matches!(refused, Err(NameRangeError::Own(_))), "{own}");
        }
        let twice = ranges(&["10.9.0.0/16", "2001:db8::/64", "10.8.0.0/16"]);
        assert!(matches!(twice, Err(NameRangeError::Twice(_))));
    }
}
