//! The rule that a destination needs to be allowed, given what else decides on destinations while a list is learned.

use std::collections::BTreeSet;
use std::net::{IpAddr, UdpSocket};

use peername_intercept::authz::{AccessRules, rule_for, rule_with_port};
use peername_intercept::host::{HostPort, LOCALHOST};
use peername_proto::{Special, meanings, special};
use peername_server::destination_list::DestinationList;

/// What decides on a destination besides rules, while a list is learned.
pub(crate) struct LearningNetwork {
    /// The ports whose connections are opened as TLS and HTTP.
    pub(crate) http_ports: BTreeSet<u16>,
    /// Destinations that are open without a rule (`--allow-destination`).
    pub(crate) allowed: DestinationList,
    /// Destinations that are relayed without a rule (`--allow-tcp`).
    pub(crate) relayed: AccessRules,
    /// Resolves a name; no addresses where that fails.
    pub(crate) resolve: fn(&str) -> Vec<IpAddr>,
}

/// The rule that allows a destination.
pub(super) struct NeededRule {
    pub(super) text: String,
    /// Whether the rule has to name the port.
    pub(super) names_port: bool,
    /// Whether the rule would open an address that is refused while learning.
    pub(super) opens_refused: bool,
}

impl LearningNetwork {
    pub(super) fn needed_rule(&self, to: &HostPort) -> NeededRule {
        if is_localhost(to) {
            return NeededRule {
                text: format!("localhost:{}", to.port),
                names_port: true,
                opens_refused: !LOCALHOST.into_iter().any(|ip| self.is_open(to, ip)),
            };
        }
        let opens_refused = to
            .host
            .as_ip()
            .is_some_and(|ip| is_refused_by_default(ip) && !self.is_open(to, ip));
        let without_port = NeededRule {
            text: rule_for(to),
            // A jail opens other ports only if a rule names them.
            names_port: !USUAL_PORTS.contains(&to.port),
            opens_refused,
        };
        // At 443 a rule opens a private address only if a certificate proves the name.
        if to.port == HTTPS_PORT || to.host.as_ip().is_some() {
            return without_port;
        }
        let mut private = self.private_addresses(to).peekable();
        if private.peek().is_none() {
            return without_port;
        }
        // A rule with the port opens a private address, too, whatever server answers there.
        NeededRule {
            text: rule_with_port(to),
            names_port: true,
            opens_refused: !private.all(|ip| self.is_open(to, ip)),
        }
    }

    /// Whether an option opens this address of the destination.
    fn is_open(&self, to: &HostPort, ip: IpAddr) -> bool {
        let is_relayed = self.relayed.names_exactly(to)
            || is_localhost(to) && self.relayed.names_exactly(&to.at_localhost());
        is_relayed || self.allowed.allows(ip, to.port)
    }

    fn private_addresses(&self, to: &HostPort) -> impl Iterator<Item = IpAddr> {
        (self.resolve)(&to.host.to_string())
            .into_iter()
            .filter(|ip| meanings(*ip).any(is_private))
    }
}

/// Whether the address belongs to a network that is not public, other than link-local ones and this host's loopback.
pub(crate) fn is_private(ip: IpAddr) -> bool {
    special(ip).is_some_and(Special::is_private_network)
}

/// Whether requests to an address are refused unless a rule or an option names it: it is not public or this host's, or embeds
/// such an address (NAT64).
pub(crate) fn is_refused_by_default(ip: IpAddr) -> bool {
    meanings(ip).any(|ip| special(ip).is_some()) || is_own_address(ip)
}

/// Whether this host has the address, to judge by whether a socket can be bound to it (bind(2), EADDRNOTAVAIL). `false` if a
/// socket can be bound to any address, as with net.ipv4.ip_nonlocal_bind and in a jail, because then nothing is known.
pub(crate) fn is_own_address(ip: IpAddr) -> bool {
    // Addresses for documentation (RFC 5737, RFC 3849): no host has them.
    let unassigned: IpAddr = match ip {
        IpAddr::V4(_) => [192, 0, 2, 1].into(),
        IpAddr::V6(_) => [0x2001, 0xdb8, 0, 0, 0, 0, 0, 1].into(),
    };
    can_bind(ip) && !can_bind(unassigned)
}

fn can_bind(ip: IpAddr) -> bool {
    UdpSocket::bind((ip, 0)).is_ok()
}

fn is_localhost(to: &HostPort) -> bool {
    to.host.is_localhost_address() || to.host.is_localhost()
}

/// The ports that every jail opens.
const USUAL_PORTS: [u16; 2] = [80, HTTPS_PORT];
pub(crate) const HTTPS_PORT: u16 = 443;
