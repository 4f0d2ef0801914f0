//! The classification of special-purpose addresses, which are special on every host.
//!
//! Every policy on addresses derives from it: the source policy, the destination policies, and the words `loopback` and
//! `private` of lists of networks. The networks are those of IANA's registries (RFC 6890, as of 2025).

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The purpose of a special address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Special {
    /// 0.0.0.0/8 or `::`: no host has it.
    Unspecified,
    /// 127.0.0.0/8 or `::1`.
    Loopback,
    /// 255.255.255.255, or an end of the loopback network.
    Broadcast,
    /// 224.0.0.0/4 or ff00::/8.
    Multicast,
    /// 240.0.0.0/4.
    Reserved,
    /// A cloud's metadata service, which gives credentials to any process of the host.
    Metadata,
    /// 169.254.0.0/16 or fe80::/10. The latter means nothing without the interface it belongs to.
    LinkLocal,
    /// RFC 1918, or unique local (RFC 4193).
    Private,
    /// Not globally reachable for another reason: shared, for documentation, for benchmarks.
    NotPublic,
}

impl Special {
    /// Whether hosts and servers have such addresses, in a network that is not public.
    pub fn is_private_network(self) -> bool {
        match self {
            Self::Private | Self::NotPublic => true,
            Self::Unspecified
            | Self::Loopback
            | Self::Broadcast
            | Self::Multicast
            | Self::Reserved
            | Self::Metadata
            | Self::LinkLocal => false,
        }
    }
}

/// The purpose of an address; `None` for an ordinary address. Ignores embedded addresses: see [`meanings`].
pub fn special(ip: IpAddr) -> Option<Special> {
    NETWORKS
        .iter()
        .find(|special| special.contains(ip))
        .map(|special| special.purpose)
}

/// The addresses that an address may stand for: itself (as IPv4, if it is IPv4-mapped), and the IPv4 address embedded in it.
pub fn meanings(ip: IpAddr) -> impl Iterator<Item = IpAddr> {
    let ip = ip.to_canonical();
    [Some(ip), embedded_ipv4(ip).map(IpAddr::V4)]
        .into_iter()
        .flatten()
}

/// Normalizes an address: IPv4-mapped IPv6 (`::ffff:a.b.c.d`) becomes IPv4; flow label and scope are dropped.
pub fn canonical(addr: SocketAddr) -> SocketAddr {
    SocketAddr::new(addr.ip().to_canonical(), addr.port())
}

/// The IPv4 address embedded in an IPv6 address: IPv4-compatible (RFC 4291, 2.5.5.1), IPv4-translated (RFC 2765, 2.1),
/// NAT64 (RFC 6052 and RFC 8215), 6to4 (RFC 3056), ISATAP (RFC 5214, 6.1) and Teredo (RFC 4380, 4; the address of the client,
/// not of the server). `None` for an IPv4-mapped address, which [`IpAddr::to_canonical`] turns into IPv4.
pub fn embedded_ipv4(ip: IpAddr) -> Option<Ipv4Addr> {
    let IpAddr::V6(ip) = ip else { return None };
    match ip.segments() {
        // Unspecified and loopback are no IPv4-compatible addresses.
        [0, 0, 0, 0, 0, 0, 0, 0 | 1] => None,
        [0, 0, 0, 0, 0, 0, high, low] => Some(ipv4(high, low)),
        [0, 0, 0, 0, 0xffff, 0, high, low] => Some(ipv4(high, low)),
        [0x2001, 0, _, _, _, _, high, low] => Some(ipv4(!high, !low)),
        [0x64, 0xff9b, 0 | 1, _, _, _, high, low] => Some(ipv4(high, low)),
        [0x2002, high, low, ..] => Some(ipv4(high, low)),
        // The two lowest bits of the first byte (u/l and group) vary between ISATAP addresses.
        [_, _, _, _, 0 | 0x100 | 0x200 | 0x300, 0x5efe, high, low] => Some(ipv4(high, low)),
        _ => None,
    }
}

fn ipv4(high: u16, low: u16) -> Ipv4Addr {
    Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low))
}

/// A network with a purpose.
pub(crate) struct SpecialNetwork {
    pub(crate) address: IpAddr,
    pub(crate) prefix: u8,
    pub(crate) purpose: Special,
}

impl SpecialNetwork {
    fn contains(&self, ip: IpAddr) -> bool {
        let common_bits = match (self.address, ip) {
            (IpAddr::V4(network), IpAddr::V4(ip)) => {
                (network.to_bits() ^ ip.to_bits()).leading_zeros()
            }
            (IpAddr::V6(network), IpAddr::V6(ip)) => {
                (network.to_bits() ^ ip.to_bits()).leading_zeros()
            }
            _ => return false,
        };
        common_bits >= self.prefix.into()
    }
}

const fn v4(address: [u8; 4], prefix: u8, purpose: Special) -> SpecialNetwork {
    SpecialNetwork {
        address: IpAddr::V4(Ipv4Addr::from_octets(address)),
        prefix,
        purpose,
    }
}

const fn v6(address: [u16; 8], prefix: u8, purpose: Special) -> SpecialNetwork {
    SpecialNetwork {
        address: IpAddr::V6(Ipv6Addr::from_segments(address)),
        prefix,
        purpose,
    }
}

/// All special networks. An address has the purpose of the first network that contains it.
pub(crate) static NETWORKS: [SpecialNetwork; 40] = [
    v4([0, 0, 0, 0], 8, Special::Unspecified),
    // The kernel treats both ends of the loopback network as broadcast addresses.
    v4([127, 0, 0, 0], 32, Special::Broadcast),
    v4([127, 255, 255, 255], 32, Special::Broadcast),
    v4([127, 0, 0, 0], 8, Special::Loopback),
    v4([224, 0, 0, 0], 4, Special::Multicast),
    v4([255, 255, 255, 255], 32, Special::Broadcast),
    v4([240, 0, 0, 0], 4, Special::Reserved),
    // The first is that of AWS EC2, Google, Azure, OpenStack, DigitalOcean and Oracle. The others are those of AWS ECS and
    // EKS, Alibaba, Azure's agent, and Oracle.
    v4([169, 254, 169, 254], 32, Special::Metadata),
    v4([169, 254, 170, 2], 32, Special::Metadata),
    v4([169, 254, 170, 23], 32, Special::Metadata),
    v4([100, 100, 100, 200], 32, Special::Metadata),
    v4([168, 63, 129, 16], 32, Special::Metadata),
    v4([192, 0, 0, 192], 32, Special::Metadata),
    v4([169, 254, 0, 0], 16, Special::LinkLocal),
    v4([10, 0, 0, 0], 8, Special::Private),
    v4([172, 16, 0, 0], 12, Special::Private),
    v4([192, 168, 0, 0], 16, Special::Private),
    // Shared by carriers (RFC 6598), protocol assignments, documentation, benchmarking.
    v4([100, 64, 0, 0], 10, Special::NotPublic),
    v4([192, 0, 0, 0], 24, Special::NotPublic),
    v4([192, 0, 2, 0], 24, Special::NotPublic),
    v4([198, 18, 0, 0], 15, Special::NotPublic),
    v4([198, 51, 100, 0], 24, Special::NotPublic),
    v4([203, 0, 113, 0], 24, Special::NotPublic),
    v6([0; 8], 128, Special::Unspecified),
    v6([0, 0, 0, 0, 0, 0, 0, 1], 128, Special::Loopback),
    v6([0xff00, 0, 0, 0, 0, 0, 0, 0], 8, Special::Multicast),
    // AWS EC2, AWS EKS, Google.
    v6(
        [0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254],
        128,
        Special::Metadata,
    ),
    v6([0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x23], 128, Special::Metadata),
    v6([0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254], 128, Special::Metadata),
    v6([0xfe80, 0, 0, 0, 0, 0, 0, 0], 10, Special::LinkLocal),
    v6([0xfc00, 0, 0, 0, 0, 0, 0, 0], 7, Special::Private),
    // Local NAT64 (RFC 8215), discard-only, protocol assignments (as 192.0.0.0/24), benchmarking, deprecated ORCHID,
    // documentation, segment routing.
    v6([0x64, 0xff9b, 1, 0, 0, 0, 0, 0], 48, Special::NotPublic),
    v6([0x100, 0, 0, 0, 0, 0, 0, 0], 63, Special::NotPublic),
    v6([0x2001, 1, 0, 0, 0, 0, 0, 0], 32, Special::NotPublic),
    v6([0x2001, 2, 0, 0, 0, 0, 0, 0], 48, Special::NotPublic),
    v6([0x2001, 0x10, 0, 0, 0, 0, 0, 0], 28, Special::NotPublic),
    v6([0x2001, 0xdb8, 0, 0, 0, 0, 0, 0], 32, Special::NotPublic),
    v6([0x3fff, 0, 0, 0, 0, 0, 0, 0], 20, Special::NotPublic),
    v6([0x5f00, 0, 0, 0, 0, 0, 0, 0], 16, Special::NotPublic),
    // Site-local, deprecated (RFC 3879) but still routed somewhere.
    v6([0xfec0, 0, 0, 0, 0, 0, 0, 0], 10, Special::NotPublic),
];
