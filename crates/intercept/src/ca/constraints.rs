//! Name constraints (RFC 5280, section 4.2.1.10): for which hosts clients accept an authority at all.

use std::net::IpAddr;
use std::str::FromStr;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use rcgen::{CidrSubnet, GeneralSubtree, NameConstraints};
use x509_parser::extensions::GeneralName;

use super::Fault;
use crate::host::Host;

/// Hosts that an authority may speak for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Permitted {
    /// A name and all below it.
    Name(String),
    /// Addresses.
    Network(IpNet),
}

/// Neither a name nor a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("use a name (example.com, for all below it too) or a network (192.0.2.0/24)")]
pub struct NotPermitted;

impl FromStr for Permitted {
    type Err = NotPermitted;

    fn from_str(text: &str) -> Result<Self, NotPermitted> {
        if let Ok(network) = text.parse::<IpNet>() {
            return Ok(Self::Network(network.trunc()));
        }
        let host = Host::parse(text).map_err(|_| NotPermitted)?;
        Ok(match host.as_ip() {
            Some(ip) => Self::Network(ip.into()),
            None => Self::Name(host.to_string()),
        })
    }
}

/// As an option has it.
impl std::fmt::Display for Permitted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Network(network) => network.fmt(f),
        }
    }
}

/// What a certificate says. A kind of which nothing is permitted is not limited by that.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Constraints {
    permitted: Vec<Permitted>,
    excluded: Vec<Permitted>,
}

impl Constraints {
    /// Those that leave these hosts and no others. A kind without constraints would be free, so if there are
    /// names only, all addresses are excluded; if there are networks only, the one name is a name that can't
    /// be (RFC 6761): an exclusion of all names is the empty one, and Java refuses a certificate with that.
    pub(super) fn only(permitted: &[Permitted]) -> Self {
        let mut constraints = Self {
            permitted: permitted.to_vec(),
            excluded: Vec::new(),
        };
        if permitted.is_empty() {
            return constraints;
        }
        if !permitted
            .iter()
            .any(|one| matches!(one, Permitted::Name(_)))
        {
            constraints
                .permitted
                .push(Permitted::Name(NOBODY.to_owned()));
        }
        if !permitted
            .iter()
            .any(|one| matches!(one, Permitted::Network(_)))
        {
            let all = [IpNet::V4(Ipv4Net::default()), IpNet::V6(Ipv6Net::default())];
            constraints.excluded.extend(all.map(Permitted::Network));
        }
        constraints
    }

    /// What was given to [`Constraints::only`]; something else if that can't have made them.
    pub(super) fn asked_for(&self) -> Vec<Permitted> {
        let nobody = |one: &&Permitted| **one != Permitted::Name(NOBODY.to_owned());
        self.permitted.iter().filter(nobody).cloned().collect()
    }

    pub(super) fn read(
        constraints: &x509_parser::extensions::NameConstraints<'_>,
    ) -> Result<Self, Fault> {
        let all = |subtrees: &Option<Vec<_>>| -> Option<Vec<_>> {
            subtrees.iter().flatten().filter_map(subtree).collect()
        };
        Ok(Self {
            permitted: all(&constraints.permitted_subtrees).ok_or(Fault::Constraints)?,
            excluded: all(&constraints.excluded_subtrees).ok_or(Fault::Constraints)?,
        })
    }

    pub(super) fn write(&self) -> Option<NameConstraints> {
        let all = |subtrees: &[Permitted]| subtrees.iter().map(Permitted::subtree).collect();
        (!self.permitted.is_empty()).then(|| NameConstraints {
            permitted_subtrees: all(&self.permitted),
            excluded_subtrees: all(&self.excluded),
        })
    }

    pub(super) fn permits(&self, host: &Host) -> bool {
        let covers = |one: &Permitted| one.covers(host);
        let limited = self.permitted.iter().any(|one| one.is_for(host));
        (!limited || self.permitted.iter().any(covers)) && !self.excluded.iter().any(covers)
    }
}

impl Permitted {
    /// Whether it says anything about hosts of this kind.
    fn is_for(&self, host: &Host) -> bool {
        matches!(self, Self::Network(_)) == host.as_ip().is_some()
    }

    fn covers(&self, host: &Host) -> bool {
        match (self, host.as_ip(), host.as_name()) {
            (Self::Network(network), Some(ip), _) => network.contains(&ip),
            (Self::Name(base), _, Some(name)) => is_below(name, base),
            _ => false,
        }
    }

    fn subtree(&self) -> GeneralSubtree {
        match self {
            Self::Name(name) => GeneralSubtree::DnsName(name.clone()),
            Self::Network(network) => GeneralSubtree::IpAddress(CidrSubnet::from_addr_prefix(
                network.addr(),
                network.prefix_len(),
            )),
        }
    }
}

/// An empty base is above all; one that begins with a dot is not below itself, which the RFC leaves open and
/// OpenSSL and webpki have so.
fn is_below(name: &str, base: &str) -> bool {
    let Some(rest) = name.strip_suffix(base) else {
        return false;
    };
    rest.is_empty() || base.is_empty() || base.starts_with('.') || rest.ends_with('.')
}

/// None if it says nothing about hosts; an error inside if it says it in a way that we don't know.
fn subtree(subtree: &x509_parser::extensions::GeneralSubtree<'_>) -> Option<Option<Permitted>> {
    match &subtree.base {
        GeneralName::DNSName(name) => Some(Some(Permitted::Name(name.to_ascii_lowercase()))),
        GeneralName::IPAddress(octets) => Some(network(octets).map(Permitted::Network)),
        GeneralName::Invalid(..) => Some(None),
        _ => None,
    }
}

/// Address and mask, one after the other.
fn network(octets: &[u8]) -> Option<IpNet> {
    let (address, mask) = octets.split_at_checked(octets.len() / 2)?;
    IpNet::with_netmask(ip(address)?, ip(mask)?).ok()
}

fn ip(octets: &[u8]) -> Option<IpAddr> {
    if let Ok(octets) = <[u8; 4]>::try_from(octets) {
        return Some(octets.into());
    }
    <[u8; 16]>::try_from(octets).ok().map(IpAddr::from)
}

/// RFC 6761, section 6.4.
const NOBODY: &str = "invalid";
