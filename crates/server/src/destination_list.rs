//! The list of destinations (`--allow-destination`), and the syntax of its entries.

use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::str::FromStr;

use ipnet::IpNet;
use peername_proto::{
    ParseNetworkError, Special, is_reversed_port_range, meanings, parse_network, port_range,
    special,
};
use prefix_trie::joint::JointPrefixMap;

use crate::access::network_set::host_network;

/// The destinations that are allowed: a prefix trie of networks, with the ports of each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DestinationList(JointPrefixMap<IpNet, Vec<Ports>>);

impl DestinationList {
    /// Whether an entry allows this destination. A wide network that happens to contain loopback or a cloud's metadata
    /// service does not allow these: loopback needs an entry within loopback, a metadata service an entry of its exact
    /// address.
    pub fn allows(&self, ip: IpAddr, port: u16) -> bool {
        let host = host_network(ip);
        let is_special = |purpose| meanings(ip).any(|ip| special(ip) == Some(purpose));
        let is_metadata = is_special(Special::Metadata);
        let is_loopback = is_special(Special::Loopback);
        self.0.cover(&host).any(|(network, ports)| {
            let is_narrow_enough = if is_metadata {
                network == host
            } else if is_loopback {
                network == host || is_within_loopback(network)
            } else {
                true
            };
            is_narrow_enough && ports.iter().any(|ports| ports.contains(&port))
        })
    }

    /// Whether a loopback address of this family is listed.
    pub fn lists_loopback(&self, is_ipv4: bool) -> bool {
        self.0
            .keys()
            .any(|network| is_within_loopback(network) && network.addr().is_ipv4() == is_ipv4)
    }

    /// Whether an entry lists this port, at whatever addresses.
    pub fn lists_port(&self, port: u16) -> bool {
        self.0.values().flatten().any(|ports| ports.contains(&port))
    }

    /// Whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromIterator<AllowedDestination> for DestinationList {
    fn from_iter<I: IntoIterator<Item = AllowedDestination>>(entries: I) -> Self {
        let mut list = Self::default();
        list.extend(entries);
        list
    }
}

impl Extend<AllowedDestination> for DestinationList {
    fn extend<I: IntoIterator<Item = AllowedDestination>>(&mut self, entries: I) {
        for entry in entries {
            self.0.entry(entry.network).or_default().push(entry.ports);
        }
    }
}

/// Whether all addresses of the network are loopback.
fn is_within_loopback(network: IpNet) -> bool {
    network.network().is_loopback() && network.broadcast().is_loopback()
}

/// An entry: the addresses of a network (CIDR) with all ports or a range of them.
///
/// Written as `10.0.0.0/8`, `10.0.0.5:443`, `10.0.0.0/8:8000-8999`, `[2001:db8::]/32:443` or
/// `[2001:db8::1]:443`; without a port the brackets are optional.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllowedDestination {
    network: IpNet,
    ports: Ports,
}

/// The reason why a text is not a valid entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseDestinationError {
    /// The syntax is wrong.
    #[error(
        "use a network or an address, and ports: 10.0.0.0/8, 10.0.0.5:443, 10.0.0.0/8:8000-8999, \
         [2001:db8::]/32:443"
    )]
    Form,
    /// A range of ports that ends before it begins.
    #[error(
        "the range of ports is reversed: write the lower port first, as in 10.0.0.0/8:8000-8999"
    )]
    ReversedPorts,
    /// Bits behind the prefix length are set.
    #[error(transparent)]
    HostBits(ParseNetworkError),
    /// A loopback address with all of its ports.
    #[error("on loopback, name the ports: 127.0.0.1:9000, [::1]:9000-9099")]
    LoopbackWithoutPorts,
}

impl AllowedDestination {
    /// The addresses of a network, with all ports.
    pub fn with_all_ports(network: IpNet) -> Self {
        let ports = FIRST_PORT..=u16::MAX;
        Self { network, ports }
    }

    /// The address and port, if the entry is a single destination.
    pub fn single(&self) -> Option<SocketAddr> {
        let is_single = self.network.prefix_len() == self.network.max_prefix_len()
            && self.ports.start() == self.ports.end();
        is_single.then(|| SocketAddr::new(self.network.addr(), *self.ports.start()))
    }
}

impl FromStr for AllowedDestination {
    type Err = ParseDestinationError;

    fn from_str(text: &str) -> Result<Self, ParseDestinationError> {
        let (network, ports) = split_ports(text).ok_or_else(|| form_error(text))?;
        let network = parse_network(&network).map_err(|error| match error {
            ParseNetworkError::Form => ParseDestinationError::Form,
            ParseNetworkError::HostBits { .. } => ParseDestinationError::HostBits(error),
        })?;
        match ports {
            Some(ports) => Ok(Self { network, ports }),
            None if is_within_loopback(network) => Err(ParseDestinationError::LoopbackWithoutPorts),
            None => Ok(Self::with_all_ports(network)),
        }
    }
}

type Ports = RangeInclusive<u16>;

/// Splits off the ports, and the brackets around an IPv6 address.
fn split_ports(text: &str) -> Option<(String, Option<Ports>)> {
    if let Some(bracketed) = text.strip_prefix('[') {
        let (address, rest) = bracketed.split_once(']')?;
        let (prefix, ports) = match rest.split_once(':') {
            Some((prefix, ports)) => (prefix, Some(port_range(ports)?)),
            None => (rest, None),
        };
        if !address.contains(':') || !(prefix.is_empty() || prefix.starts_with('/')) {
            return None;
        }
        return Some((format!("{address}{prefix}"), ports));
    }
    // An IPv6 network without brackets: the last colon begins no port.
    if parse_network(text) != Err(ParseNetworkError::Form) {
        return Some((text.to_owned(), None));
    }
    let (network, ports) = text.rsplit_once(':')?;
    Some((network.to_owned(), Some(port_range(ports)?)))
}

/// The error of a text that has no valid ports.
fn form_error(text: &str) -> ParseDestinationError {
    match text.rsplit_once(':') {
        Some((_, ports)) if is_reversed_port_range(ports) => ParseDestinationError::ReversedPorts,
        _ => ParseDestinationError::Form,
    }
}

const FIRST_PORT: u16 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_parsed_and_other_texts_rejected() {
        for (text, network, ports) in [
            ("10.0.0.0/8", "10.0.0.0/8", 1..=65535),
            ("10.0.0.0/8:80", "10.0.0.0/8", 80..=80),
            ("10.0.0.5", "10.0.0.5/32", 1..=65535),
            ("10.0.0.5:8000-8999", "10.0.0.5/32", 8000..=8999),
            ("[2001:db8::]/32:80", "2001:db8::/32", 80..=80),
            ("[2001:db8::/32]:80", "2001:db8::/32", 80..=80),
            ("2001:db8::/32:80-81", "2001:db8::/32", 80..=81),
            ("2001:db8::/32", "2001:db8::/32", 1..=65535),
            ("[2001:db8::1]", "2001:db8::1/128", 1..=65535),
            ("2001:db8::1", "2001:db8::1/128", 1..=65535),
            ("[::1]:80", "::1/128", 80..=80),
            ("[::ffff:10.0.0.0]/104:80", "10.0.0.0/8", 80..=80),
        ] {
            let entry: AllowedDestination = text.parse().unwrap_or_else(|e| panic!("{text}: {e}"));
            assert_eq!(
                (entry.network.to_string().as_str(), entry.ports),
                (network, ports),
                "{text}"
            );
        }
        use ParseDestinationError::{Form, LoopbackWithoutPorts, ReversedPorts};
        for (wrong, error) in [
            ("", Form),
            ("any", Form),
            ("10.0.0.0/33", Form),
            ("10.0.0.5:", Form),
            ("10.0.0.5:0", Form),
            ("10.0.0.5:80-", Form),
            ("10.0.0.5:65536", Form),
            ("[10.0.0.5]:80", Form),
            ("[2001:db8::]/32:", Form),
            ("[2001:db8::", Form),
            ("[2001:db8::]80", Form),
            ("host:80", Form),
            ("10.0.0.5:90-80", ReversedPorts),
            ("[2001:db8::]/32:90-80", ReversedPorts),
            ("127.0.0.1", LoopbackWithoutPorts),
            ("127.0.0.0/8", LoopbackWithoutPorts),
            ("::1", LoopbackWithoutPorts),
            ("[::1]", LoopbackWithoutPorts),
        ] {
            assert_eq!(wrong.parse::<AllowedDestination>(), Err(error), "{wrong}");
        }
        for wrong in ["10.1.2.3/8", "10.1.2.3/8:80", "[2001:db8::1]/32:80"] {
            let error = wrong.parse::<AllowedDestination>().unwrap_err();
            assert!(
                matches!(error, ParseDestinationError::HostBits(_)),
                "{wrong}"
            );
        }
    }
}
