//! Networks (CIDR) as operators write them, and those of special addresses.

use core::net::{IpAddr, Ipv6Addr, SocketAddrV6};
use core::num::NonZeroU16;

use ipnet::{IpNet, Ipv4Net};

use crate::special::{NETWORKS, Special};

/// Parses a network in CIDR form. Host bits are ignored (`10.1.2.3/8` is `10.0.0.0/8`), a single address is a network of
/// one host, and an IPv4-mapped network becomes the IPv4 network.
pub fn parse_network(text: &str) -> Option<IpNet> {
    let network = match text.parse::<IpNet>() {
        Ok(network) => network.trunc(),
        Err(_) => IpNet::from(text.parse::<IpAddr>().ok()?),
    };
    Some(unmap_ipv4(network))
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
