//! Networks in CIDR notation as operators write them, and the networks of special addresses.

use core::net::IpAddr;

use ipnet::{IpNet, Ipv4Net};

use crate::special::{NETWORKS, Special};

/// The reason why a text is no network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseNetworkError {
    /// The syntax is wrong.
    #[error("neither a network (192.0.2.0/24) nor an address")]
    Form,
    /// The address has bits set behind the prefix length: the operator may have meant that address alone, or another network.
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
/// [`ParseNetworkError`]. Host bits are refused, as PostgreSQL's `cidr` and `ip route` do: the writer of `10.1.2.3/8` may mean
/// another network, and a wider one trusts more peers.
pub fn parse_network(text: &str) -> Result<IpNet, ParseNetworkError> {
    let network = parse_with_host_bits(text).ok_or(ParseNetworkError::Form)?;
    if network == network.trunc() {
        Ok(unmap_ipv4(network))
    } else {
        Err(ParseNetworkError::HostBits {
            network: unmap_ipv4(network.trunc()),
            address: network.addr().to_canonical(),
        })
    }
}

/// Parses a network, and clears its host bits: `10.1.2.3/8` is `10.0.0.0/8`. For lists that are written for other programs, and for
/// queries, where a wider network does no harm.
pub fn parse_truncated_network(text: &str) -> Option<IpNet> {
    parse_with_host_bits(text).map(|network| unmap_ipv4(network.trunc()))
}

fn parse_with_host_bits(text: &str) -> Option<IpNet> {
    text.parse()
        .ok()
        .or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from))
}

/// Lists the networks of a purpose. They may contain networks of another purpose.
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
