//! The policy for destinations, which decides on addresses.
//!
//! The policy can't decide on a name: its owner chooses the addresses that it resolves to. So a destination is admitted after
//! resolution, and the proxy connects to exactly the address that was admitted.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use peername_proto::{HostAddress, Special, meanings, special};
use peername_server::destination_list::DestinationList;
use peername_server::own_addresses::OwnAddresses;

use crate::authz::AccessRules;
use crate::authz::rules::Naming;
use crate::host::HostPort;
use crate::request::remedy::Remedy;

/// The destination policy of this process.
#[derive(Debug)]
pub struct Destinations {
    /// Destinations that are allowed beyond ports 80 and 443 of public addresses (`--allow-destination`).
    pub allowed: DestinationList,
    /// Ports of public addresses that are allowed beside 80 and 443.
    pub ports: Vec<u16>,
    /// The access lists. A rule that allows one host by its name or address also admits that host as a destination.
    pub rules: SharedRules,
    /// The rules for what a jail relays unopened (`--allow-tcp`). They admit destinations as those of the access lists do.
    pub relayed: AccessRules,
    /// Whether a request for one loopback address may go to the other one. This is so only without rules and checks, which may
    /// have decided on one of the addresses only.
    pub treats_loopback_as_one: bool,
    /// This host's addresses.
    pub own_addresses: OwnAddresses,
    /// The ports on which this process listens.
    pub listening: Vec<u16>,
}

/// The current access lists, if there are any. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct SharedRules(Arc<ArcSwapOption<AccessRules>>);

impl SharedRules {
    /// Creates lists that a reload can replace.
    pub fn new(rules: Option<Arc<AccessRules>>) -> Self {
        Self(Arc::new(ArcSwapOption::new(rules)))
    }

    pub(crate) fn store(&self, rules: Option<Arc<AccessRules>>) {
        self.0.store(rules);
    }
}

/// The destination of a request, one of whose addresses is to be decided on.
#[derive(Clone, Copy, Debug)]
pub struct Requested<'a> {
    /// The host and port.
    pub to: &'a HostPort,
    /// Whether the origin has to prove its name by a certificate before the request is sent.
    pub is_verified: bool,
    /// Whether the host is the address, or the proxy has resolved its name to it; `false` if the client chose the address.
    pub is_resolved: bool,
}

/// Why a destination is denied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DestinationDenied {
    /// A listener of this process.
    #[error("a listener of this proxy itself: the request would loop")]
    OwnListener,
    /// A multicast, broadcast, unspecified or reserved address, which no server has.
    #[error("no address of a server")]
    NotAServer,
    /// A cloud's metadata service, which gives secrets to any request from this host.
    #[error("a cloud's metadata service")]
    Metadata,
    /// This host.
    #[error("this host itself")]
    ThisHost,
    /// A network that is not public: private, shared, link-local, unique local, for documentation and tests.
    #[error("not a public address")]
    NotPublic,
    /// A port other than 80, 443, those of [`Destinations::ports`], and those that rules name.
    #[error("a port other than 80 and 443")]
    Port,
}

impl DestinationDenied {
    /// A stable code for logs and responses.
    pub fn code(self) -> &'static str {
        match self {
            Self::OwnListener => "destination_own_listener",
            Self::NotAServer => "destination_not_a_server",
            Self::Metadata => "destination_metadata",
            Self::ThisHost => "destination_this_host",
            Self::NotPublic => "destination_not_public",
            Self::Port => "destination_port",
        }
    }

    /// The option that would allow a request for `to` that leads to this address; `None` if no option would. `original_dst` is the
    /// original destination of a redirected connection that names `to`.
    pub(crate) fn remedy(
        self,
        to: &HostPort,
        original_dst: Option<IpAddr>,
        addr: SocketAddr,
        has_rules: bool,
    ) -> Option<Remedy> {
        let is_address = to.host.as_ip().is_some();
        let is_localhost = to.host.is_loopback() || to.host.is_localhost();
        match self {
            Self::OwnListener | Self::NotAServer => None,
            // `localhost` includes both loopback addresses: a server may listen on one only.
            Self::ThisHost if is_localhost => {
                let rule = format!("localhost:{}", to.port);
                let other = Remedy::AllowLoopback(to.port);
                Some(Remedy::rule_or(has_rules, rule, other))
            }
            // No rule for a name opens such an address.
            Self::Metadata | Self::ThisHost if !is_address => Some(Remedy::AllowDestination(addr)),
            Self::NotPublic
                if !is_address
                    && (original_dst.is_some()
                        || meanings(addr.ip())
                            .any(|ip| special(ip) == Some(Special::LinkLocal))) =>
            {
                Some(Remedy::AllowDestination(addr))
            }
            Self::Metadata | Self::ThisHost | Self::NotPublic | Self::Port => {
                let other = Remedy::AllowDestination(addr);
                Some(Remedy::rule_or(has_rules, to.to_string(), other))
            }
        }
    }
}

impl Destinations {
    /// Decides on an address of a requested destination, and on the IPv4 address that an IPv6 address may embed.
    pub fn admit(
        &self,
        addr: SocketAddr,
        requested: Requested<'_>,
    ) -> Result<(), DestinationDenied> {
        let (ip, port) = (addr.ip().to_canonical(), addr.port());
        meanings(ip).try_for_each(|ip| self.deny_always(ip, port))?;
        if self.allowed.allows(ip, port) {
            return Ok(());
        }
        let naming = self.naming(requested.to);
        meanings(ip).try_for_each(|meaning| {
            if naming.names_host && self.is_opened_by_rule(ip, meaning, requested, naming) {
                Ok(())
            } else {
                self.deny_special(meaning)
            }
        })?;
        match port {
            80 | 443 => Ok(()),
            _ if naming.names_port || self.ports.contains(&port) => Ok(()),
            _ => Err(DestinationDenied::Port),
        }
    }

    /// Whether a request for one loopback address, which leads to `ip`, may go to the other loopback address, too.
    pub(crate) fn may_try_both_loopbacks(&self, to: &HostPort, ip: IpAddr) -> bool {
        ip.is_loopback()
            && to.host.is_loopback()
            && (self.treats_loopback_as_one || self.opens_localhost(to))
    }

    /// Whether this is a loopback address, and a rule opens `localhost` at this port.
    fn opens_localhost(&self, to: &HostPort) -> bool {
        to.host.is_loopback() && self.naming(&to.at_localhost()).names_host
    }

    /// How exactly the rules name a destination.
    fn naming(&self, to: &HostPort) -> Naming {
        let relayed = self.relayed.naming(to);
        match &*self.rules.0.load() {
            Some(rules) => rules.naming(to).or(relayed),
            None => relayed,
        }
    }

    /// Whether a rule that names the requested host opens `ip`. `meaning` is `ip` itself, or the IPv4 address that it embeds.
    ///
    /// A rule for an address opens this address. A rule for a name does not open each address that the name's owner makes it
    /// resolve to (DNS rebinding). It opens private addresses if the origin has to prove the name, or if the rule names the
    /// port as well. It never opens this host, link-local addresses and metadata services, except that `localhost` opens
    /// loopback addresses.
    fn is_opened_by_rule(
        &self,
        ip: IpAddr,
        meaning: IpAddr,
        requested: Requested<'_>,
        naming: Naming,
    ) -> bool {
        let host = &requested.to.host;
        if let Some(named) = host.as_ip() {
            return named == ip || ip.is_loopback() && self.opens_localhost(requested.to);
        }
        match special(meaning) {
            Some(Special::Loopback) => host.is_localhost(),
            Some(Special::Private | Special::NotPublic) => {
                !host.is_localhost()
                    && requested.is_resolved
                    && self.own_addresses.kind_of(meaning).is_none()
                    && (requested.is_verified || naming.names_both)
            }
            _ => false,
        }
    }

    /// Whether the proxy itself listens there.
    pub(crate) fn is_own_listener(&self, ip: IpAddr, port: u16) -> bool {
        let is_own_address =
            ip.is_loopback() || self.own_addresses.kind_of(ip) == Some(HostAddress::Own);
        is_own_address && self.listening.contains(&port)
    }

    /// Denies the addresses that even an entry of `allowed` can't allow.
    fn deny_always(&self, ip: IpAddr, port: u16) -> Result<(), DestinationDenied> {
        if self.is_own_listener(ip, port) {
            return Err(DestinationDenied::OwnListener);
        }
        let is_not_a_server = matches!(
            special(ip),
            Some(
                Special::Unspecified | Special::Broadcast | Special::Multicast | Special::Reserved
            )
        );
        let is_network_or_broadcast =
            self.own_addresses.kind_of(ip) == Some(HostAddress::NetworkOrBroadcast);
        if is_not_a_server || is_network_or_broadcast || port == 0 {
            return Err(DestinationDenied::NotAServer);
        }
        Ok(())
    }

    /// Denies the addresses that only a rule or an entry of `allowed` can allow.
    fn deny_special(&self, ip: IpAddr) -> Result<(), DestinationDenied> {
        match special(ip) {
            Some(Special::Metadata) => Err(DestinationDenied::Metadata),
            Some(Special::Loopback) => Err(DestinationDenied::ThisHost),
            _ if self.own_addresses.kind_of(ip).is_some() => Err(DestinationDenied::ThisHost),
            Some(_) => Err(DestinationDenied::NotPublic),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use peername_proto::HostAddress;

    use super::*;
    use crate::authz::Rule;

    fn destinations(rules: &[&str]) -> Destinations {
        let rules = rules
            .iter()
            .map(|rule| Rule::allow(rule).unwrap())
            .collect();
        let own = "10.0.0.9".parse().unwrap();
        Destinations {
            allowed: DestinationList::default(),
            ports: Vec::new(),
            rules: SharedRules::new(AccessRules::new(rules).unwrap().map(Arc::new)),
            relayed: AccessRules::deny_others(Vec::new()),
            treats_loopback_as_one: false,
            own_addresses: OwnAddresses::fixed([(own, HostAddress::Own)]),
            listening: vec![3128],
        }
    }

    /// Whether a request for `to` may be sent to this address, with and without a certificate that proves the name.
    fn verdicts(destinations: &Destinations, to: &str, ip: &str) -> [bool; 2] {
        let to = HostPort::parse(to).unwrap();
        let addr = SocketAddr::new(ip.parse().unwrap(), to.port);
        [true, false].map(|is_verified| {
            let requested = Requested {
                to: &to,
                is_verified,
                is_resolved: true,
            };
            destinations.admit(addr, requested).is_ok()
        })
    }

    #[test]
    fn exact_name_opens_private_addresses_that_a_certificate_proves_or_with_its_port() {
        let listed = destinations(&["wiki.test", "db.test:5432", "*.any.test:5432", "*"]);
        for (to, ip, expected) in [
            ("wiki.test:443", "10.0.0.1", [true, false]),
            ("wiki.test:443", "fd00::1", [true, false]),
            ("wiki.test:443", "64:ff9b::a00:1", [true, false]),
            ("wiki.test:5432", "10.0.0.1", [false, false]),
            ("db.test:5432", "10.0.0.1", [true, true]),
            ("db.test:5432", "192.0.2.1", [true, true]),
            ("db.test:443", "10.0.0.1", [false, false]),
            ("db.test:5432", "11.0.0.1", [true, true]),
            ("x.any.test:5432", "11.0.0.1", [true, true]),
            ("x.any.test:5432", "10.0.0.1", [false, false]),
            ("other.test:443", "10.0.0.1", [false, false]),
            ("other.test:5432", "11.0.0.1", [false, false]),
        ] {
            assert_eq!(verdicts(&listed, to, ip), expected, "{to} {ip}");
        }
        // DNS rebinding: no rule for a name opens these.
        for ip in [
            "127.0.0.1",
            "::1",
            "169.254.169.254",
            "169.254.1.1",
            "10.0.0.9",
            "64:ff9b::7f00:1",
            "64:ff9b::a9fe:a9fe",
        ] {
            assert_eq!(verdicts(&listed, "db.test:5432", ip), [false; 2], "{ip}");
        }
    }

    #[test]
    fn rule_for_some_requests_opens_nothing_for_the_others() {
        let listed = destinations(&[
            "GET 127.0.0.1:8081/health",
            "GET 10.0.0.1",
            "wiki.test/pub",
            "GET *:9001",
            "10.0.0.2",
            "*",
        ]);
        for (to, ip, is_open) in [
            ("127.0.0.1:8081", "127.0.0.1", false),
            ("10.0.0.1:443", "10.0.0.1", false),
            ("wiki.test:443", "10.0.0.1", false),
            ("other.test:9001", "11.0.0.1", false),
            ("10.0.0.2:443", "10.0.0.2", true),
        ] {
            assert_eq!(verdicts(&listed, to, ip), [is_open; 2], "{to} {ip}");
        }
        let alone = destinations(&["GET 127.0.0.1:8081/health", "POST 127.0.0.1:8081/x"]);
        assert_eq!(verdicts(&alone, "127.0.0.1:8081", "127.0.0.1"), [true; 2]);
        let after_all = destinations(&["*", "GET 10.0.0.1/x", "10.0.0.1"]);
        assert_eq!(verdicts(&after_all, "10.0.0.1:443", "10.0.0.1"), [true; 2]);
    }

    #[test]
    fn remedy_for_this_host_opens_it() {
        for (to, ip, option) in [
            ("localhost:8081", "127.0.0.1", "--allow localhost:8081"),
            ("127.0.0.1:8081", "127.0.0.1", "--allow localhost:8081"),
            ("[::1]:8081", "::1", "--allow localhost:8081"),
            ("127.0.0.2:8081", "127.0.0.2", "--allow 127.0.0.2:8081"),
            (
                "db.test:8081",
                "127.0.0.1",
                "--allow-destination 127.0.0.1:8081",
            ),
        ] {
            let addr = SocketAddr::new(ip.parse().unwrap(), 8081);
            let named = HostPort::parse(to).unwrap();
            let remedy = DestinationDenied::ThisHost.remedy(&named, None, addr, true);
            let remedy = remedy.expect("a remedy");
            assert_eq!(remedy.to_string(), option, "{to}");
            if let Remedy::Allow(rule) = remedy {
                assert_eq!(verdicts(&destinations(&[&rule]), to, ip), [true; 2], "{to}");
            }
        }
    }

    #[test]
    fn remedy_for_a_name_names_the_address_where_no_rule_for_the_name_opens_it() {
        let redirected = Some([10, 0, 0, 1].into());
        for (ip, original_dst, option) in [
            ("10.0.0.1", None, "--allow wiki.test:443"),
            ("10.0.0.1", redirected, "--allow-destination 10.0.0.1:443"),
            ("169.254.1.1", None, "--allow-destination 169.254.1.1:443"),
        ] {
            let to = HostPort::parse("wiki.test:443").unwrap();
            let addr = SocketAddr::new(ip.parse().unwrap(), 443);
            let remedy = DestinationDenied::NotPublic.remedy(&to, original_dst, addr, true);
            assert_eq!(remedy.unwrap().to_string(), option, "{ip} {original_dst:?}");
        }
    }

    /// A client that is redirected to the proxy chooses both the address and the name.
    #[test]
    fn address_that_the_client_chose_is_not_opened_by_a_name() {
        let listed = destinations(&["wiki.test:443"]);
        let to = HostPort::parse("wiki.test:443").unwrap();
        for (is_resolved, is_open) in [(true, true), (false, false)] {
            let requested = Requested {
                to: &to,
                is_verified: true,
                is_resolved,
            };
            let addr = SocketAddr::new("10.0.0.1".parse().unwrap(), 443);
            assert_eq!(listed.admit(addr, requested).is_ok(), is_open);
        }
    }

    #[test]
    fn exact_address_opens_itself_and_networks_open_nothing() {
        let listed = destinations(&[
            "10.0.0.1",
            "169.254.169.254:80",
            "127.0.0.1:8081",
            "10.0.0.9:443",
            "10.1.0.0/16:5432",
            "10.0.0.1:3128",
        ]);
        for (to, ip, is_open) in [
            ("10.0.0.1:443", "10.0.0.1", true),
            ("10.0.0.1:5432", "10.0.0.1", false),
            ("a.test:443", "10.0.0.1", false),
            ("169.254.169.254:80", "169.254.169.254", true),
            ("a.test:80", "169.254.169.254", false),
            ("127.0.0.1:8081", "127.0.0.1", true),
            ("127.0.0.1:8081", "::1", false),
            ("localhost:8081", "127.0.0.1", false),
            ("10.0.0.9:443", "10.0.0.9", true),
            ("10.1.0.1:5432", "10.1.0.1", false),
            ("10.0.0.2:443", "10.0.0.2", false),
        ] {
            assert_eq!(verdicts(&listed, to, ip), [is_open; 2], "{to} {ip}");
        }
        let own = destinations(&["127.0.0.1:3128"]);
        assert_eq!(verdicts(&own, "127.0.0.1:3128", "127.0.0.1"), [false; 2]);
    }

    #[test]
    fn both_loopback_addresses_are_tried_if_a_rule_opens_localhost() {
        let destinations = destinations(&["any", "localhost:8081"]);
        for (to, ip, is_both) in [
            ("[::1]:8081", "::1", true),
            ("[::1]:8082", "::1", false),
            ("[::1]:8081", "192.0.2.1", false),
        ] {
            let (to, ip) = (HostPort::parse(to).unwrap(), ip.parse().unwrap());
            assert_eq!(
                destinations.may_try_both_loopbacks(&to, ip),
                is_both,
                "{to:?}"
            );
        }
    }

    #[test]
    fn localhost_opens_loopback_at_its_port_only() {
        let listed = destinations(&["localhost:8081"]);
        for (to, ip, is_open) in [
            ("localhost:8081", "127.0.0.1", true),
            ("localhost:8081", "::1", true),
            ("127.0.0.1:8081", "::1", true),
            ("localhost:8082", "127.0.0.1", false),
            ("localhost:8081", "10.0.0.9", false),
            ("localhost:8081", "10.0.0.1", false),
            ("localhost:8081", "169.254.169.254", false),
        ] {
            assert_eq!(verdicts(&listed, to, ip), [is_open; 2], "{to} {ip}");
        }
    }
}
