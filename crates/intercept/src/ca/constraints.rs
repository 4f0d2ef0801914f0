//! Name constraints (RFC 5280, section 4.2.1.10): the hosts for which clients accept an authority.

use std::net::IpAddr;
use std::str::FromStr;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use peername_proto::ParseNetworkError;
use rcgen::{CidrSubnet, GeneralSubtree, NameConstraints};
use x509_parser::extensions::GeneralName;

use super::error::AuthorityDefect;
use crate::host::Host;

/// Hosts that an authority is permitted to issue certificates for, or that are excluded: a GeneralSubtree of RFC 5280.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subtree {
    /// A name and all below it.
    Name(String),
    /// Addresses.
    Network(IpNet),
}

/// Why a text is neither a name nor a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ParseSubtreeError {
    /// The syntax is wrong.
    #[error("use a name (example.com, for all below it too) or a network (192.0.2.0/24)")]
    Form,
    /// A network has bits set after its prefix.
    #[error(transparent)]
    HostBits(ParseNetworkError),
}

impl FromStr for Subtree {
    type Err = ParseSubtreeError;

    fn from_str(text: &str) -> Result<Self, ParseSubtreeError> {
        match peername_proto::parse_network(text) {
            Ok(network) => return Ok(Self::Network(network)),
            Err(error @ ParseNetworkError::HostBits { .. }) => {
                return Err(ParseSubtreeError::HostBits(error));
            }
            Err(ParseNetworkError::Form) => {}
        }
        let host = Host::parse(text).map_err(|_| ParseSubtreeError::Form)?;
        Ok(match host.as_ip() {
            Some(ip) => Self::Network(ip.into()),
            None => Self::Name(host.to_string()),
        })
    }
}

/// In the form of the option.
impl std::fmt::Display for Subtree {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Network(network) => network.fmt(f),
        }
    }
}

/// The constraints in a certificate. If no host of a kind (names, addresses) is permitted, only `excluded` constrains that
/// kind.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Constraints {
    permitted: Vec<Subtree>,
    excluded: Vec<Subtree>,
}

impl Constraints {
    /// Creates the constraints that permit these hosts and no others. If `permitted` is empty, all hosts are permitted.
    ///
    /// A kind (names, addresses) without constraints would be unrestricted. So all addresses are excluded if there are only
    /// names. If there are only networks, a name that can't exist is permitted: to exclude all names, the certificate would
    /// need the empty name, and Java refuses a certificate with an empty name.
    pub(super) fn permit_only(permitted: &[Subtree]) -> Self {
        let mut constraints = Self {
            permitted: permitted.to_vec(),
            excluded: Vec::new(),
        };
        if permitted.is_empty() {
            return constraints;
        }
        let is_name = |host: &Subtree| matches!(host, Subtree::Name(_));
        if !permitted.iter().any(is_name) {
            constraints
                .permitted
                .push(Subtree::Name(NONEXISTENT_NAME.to_owned()));
        }
        if permitted.iter().all(is_name) {
            let all = [IpNet::V4(Ipv4Net::default()), IpNet::V6(Ipv6Net::default())];
            constraints.excluded.extend(all.map(Subtree::Network));
        }
        constraints
    }

    /// The permitted hosts, without the [nonexistent name](NONEXISTENT_NAME) that [`Constraints::permit_only`] may have added.
    ///
    /// `permit_only` does not always make the same constraints of them again: another program may have made the certificate, or
    /// a user may have permitted `invalid`.
    pub(super) fn permitted_hosts(&self) -> Vec<Subtree> {
        let nonexistent = Subtree::Name(NONEXISTENT_NAME.to_owned());
        self.permitted
            .iter()
            .filter(|host| **host != nonexistent)
            .cloned()
            .collect()
    }

    pub(super) fn parse(
        constraints: &x509_parser::extensions::NameConstraints<'_>,
    ) -> Result<Self, AuthorityDefect> {
        let parse_all = |subtrees: &Option<Vec<_>>| -> Result<Vec<_>, AuthorityDefect> {
            subtrees
                .iter()
                .flatten()
                .filter_map(parse_subtree)
                .collect::<Option<_>>()
                .ok_or(AuthorityDefect::Constraints)
        };
        Ok(Self {
            permitted: parse_all(&constraints.permitted_subtrees)?,
            excluded: parse_all(&constraints.excluded_subtrees)?,
        })
    }

    pub(super) fn to_rcgen(&self) -> Option<NameConstraints> {
        let to_subtrees = |hosts: &[Subtree]| hosts.iter().map(Subtree::to_rcgen).collect();
        (!self.permitted.is_empty()).then(|| NameConstraints {
            permitted_subtrees: to_subtrees(&self.permitted),
            excluded_subtrees: to_subtrees(&self.excluded),
        })
    }

    pub(super) fn permits(&self, host: &Host) -> bool {
        let covers = |constraint: &Subtree| constraint.covers(host);
        if self.excluded.iter().any(covers) {
            return false;
        }
        let is_kind_constrained = self
            .permitted
            .iter()
            .any(|constraint| constraint.is_of_kind(host));
        !is_kind_constrained || self.permitted.iter().any(covers)
    }
}

impl Subtree {
    /// Whether it constrains the kind of this host: names or addresses.
    fn is_of_kind(&self, host: &Host) -> bool {
        matches!(self, Self::Network(_)) == host.as_ip().is_some()
    }

    fn covers(&self, host: &Host) -> bool {
        match (self, host.as_ip(), host.as_name()) {
            (Self::Network(network), Some(ip), _) => network.contains(&ip),
            (Self::Name(base), _, Some(name)) => is_below(name, base),
            _ => false,
        }
    }

    fn to_rcgen(&self) -> GeneralSubtree {
        match self {
            Self::Name(name) => GeneralSubtree::DnsName(name.clone()),
            Self::Network(network) => GeneralSubtree::IpAddress(CidrSubnet::from_addr_prefix(
                network.addr(),
                network.prefix_len(),
            )),
        }
    }
}

/// Whether `name` is `base` or below it. All names are below an empty base. A base that begins with a dot covers only names
/// below it, as in OpenSSL and webpki; the RFC leaves this open.
fn is_below(name: &str, base: &str) -> bool {
    let Some(rest) = name.strip_suffix(base) else {
        return false;
    };
    rest.is_empty() || base.is_empty() || base.starts_with('.') || rest.ends_with('.')
}

/// `None` if the subtree does not constrain hosts; `Some(None)` if it constrains them in an unknown form.
fn parse_subtree(subtree: &x509_parser::extensions::GeneralSubtree<'_>) -> Option<Option<Subtree>> {
    match &subtree.base {
        GeneralName::DNSName(name) => Some(Some(Subtree::Name(name.to_ascii_lowercase()))),
        GeneralName::IPAddress(bytes) => Some(parse_network(bytes).map(Subtree::Network)),
        GeneralName::Invalid(..) => Some(None),
        _ => None,
    }
}

/// Parses address and mask, one after the other.
fn parse_network(bytes: &[u8]) -> Option<IpNet> {
    let (address, mask) = bytes.split_at_checked(bytes.len() / 2)?;
    IpNet::with_netmask(parse_ip(address)?, parse_ip(mask)?).ok()
}

fn parse_ip(bytes: &[u8]) -> Option<IpAddr> {
    if let Ok(v4) = <[u8; 4]>::try_from(bytes) {
        return Some(v4.into());
    }
    <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from)
}

/// A name that can't exist (RFC 6761, section 6.4).
const NONEXISTENT_NAME: &str = "invalid";
