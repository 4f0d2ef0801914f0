//! Networks (CIDR) as operators write them, and those of special addresses.

use core::net::{IpAddr, Ipv6Addr, SocketAddrV6};
use core::num::NonZeroU16;

use ipnet::{IpNet, Ipv4Net};

use crate::special::{NETWORKS, Special};

/// Why a text is no network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseNetworkError {
    /// The syntax is wrong.
    #[error("neither a network (192.0.2.0/24) nor an address")]
    Form,
    /// Bits behind the prefix length are set: the network is wider than the address that was meant, or another one.
    #[error("an address with the length of a wider network: write {network} for all of it, or {} alone", .address)]
    HostBits {
        /// The network.
        network: IpNet,
        /// The address before the slash.
        address: IpAddr,
    },
}

/// Parses a network in CIDR form. A single address is a network of one host, and an IPv4-mapped network becomes the IPv4
/// network.
///
/// # Errors
///
/// [`ParseNetworkError`]. Host bits are refused, as PostgreSQL's `cidr` and `ip route` do: who writes `10.1.2.3/8` may mean
/// another network, and a wider one trusts more peers.
pub fn parse_network(text: &str) -> Result<IpNet, ParseNetworkError> {
    let network = parse_with_host_bits(text).ok_or(ParseNetworkError::Form)?;
    match network == network.trunc() {
        true => Ok(unmap_ipv4(network)),
        false => Err(ParseNetworkError::HostBits {
            network: unmap_ipv4(network.trunc()),
            address: network.addr().to_canonical(),
        }),
    }
}

/// Parses a network of a list that other programs write, which ignore host bits: `10.1.2.3/8` is `10.0.0.0/8`.
pub fn parse_listed_network(text: &str) -> Option<IpNet> {
    parse_with_host_bits(text).map(|network| unmap_ipv4(network.trunc()))
}

fn parse_with_host_bits(text: &str) -> Option<IpNet> {
    let address = || text.parse::<IpAddr>().ok().map(IpNet::from);
    text.parse().ok().or_else(address)
}

/// Parses an IPv6 address with a port behind it but without brackets, `::1:22`, where that is an address, too.
pub fn parse_unbracketed(text: &str) -> Option<SocketAddrV6> {
    text.parse::<Ipv6Addr>().ok()?;
    let (address, port) = text.rsplit_once(':')?;
    let port: NonZeroU16 = port.parse().ok()?;
    Some(SocketAddrV6::new(address.parse().ok()?, port.get(), 0, 0))
}

/// The networks of a purpose. Those of another one may be within them.
pub fn networks_of(purpose: Special) -> impl Iterator<Item = IpNet> {
    NETWORKS
        .iter()
        .filter(move |special| special.purpose == purpose)
        .filter_map(|special| IpNet::new(special.address, special.prefix).ok())
}

fn unmap_ipv4(network: IpNet) -> IpNet {
    let IpNet::V6(v6) = network else {
        return network;
    };
    match (v6.addr().to_ipv4_mapped(), v6.prefix_len().checked_sub(96)) {
        (Some(addr), Some(prefix)) => Ipv4Net::new(addr, prefix).map_or(network, IpNet::from),
        _ => network,
    }
}
