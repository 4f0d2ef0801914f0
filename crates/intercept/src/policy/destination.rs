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

use crate::authz::rules::Naming;
use crate::authz::{AccessRules, rule_with_port};
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
    /// Whether the rule that allows the request names the port.
    pub is_port_named: bool,
}

impl<'a> Requested<'a> {
    /// A host and port of which nothing else is known.
    pub fn plain(to: &'a HostPort) -> Self {
        Self {
            to,
            is_verified: false,
            is_resolved: true,
            is_port_named: false,
        }
    }
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
        may_suggest_rule: bool,
    ) -> Option<Remedy> {
        let is_address = to.host.as_ip().is_some();
        let is_localhost = to.host.is_localhost_address() || to.host.is_localhost();
        match self {
            Self::OwnListener | Self::NotAServer => None,
            // `localhost` includes both loopback addresses: a server may listen on one only.
            Self::ThisHost if is_localhost => {
                let rule = format!("localhost:{}", to.port);
                let other = Remedy::AllowLoopback(to.port);
                Some(Remedy::rule_or(may_suggest_rule, rule, other))
            }
            // No rule for a name opens such an address, nor a link-local one or one that the client chose.
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
                Some(Remedy::rule_or(may_suggest_rule, rule_with_port(to), other))
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
        if requested.is_port_named || self.opens_port(port, naming) {
            Ok(())
        } else {
            Err(DestinationDenied::Port)
        }
    }

    /// Whether a request for a name may be sent to its port, at some address.
    pub(crate) fn may_open_port(&self, to: &HostPort) -> bool {
        self.opens_port(to.port, self.naming(to)) || self.allowed.lists_port(to.port)
    }

    /// Whether the port is open at public addresses.
    fn opens_port(&self, port: u16, naming: Naming) -> bool {
        matches!(port, 80 | 443) || naming.names_port || self.ports.contains(&port)
    }

    /// Whether a request for one loopback address, which leads to `ip`, may go to the other loopback address, too.
    pub(crate) fn may_try_both_loopbacks(&self, to: &HostPort, ip: IpAddr) -> bool {
        ip.is_loopback()
            && to.host.is_localhost_address()
            && (self.treats_loopback_as_one || self.opens_localhost(to))
    }

    /// Whether this is a loopback address, and a rule opens `localhost` at this port.
    fn opens_localhost(&self, to: &HostPort) -> bool {
        to.host.is_localhost_address() && self.naming(&to.at_localhost()).names_host
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
            Some(purpose) if purpose.is_private_network() => {
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
        let is_not_a_server = match special(ip) {
            Some(
                Special::Unspecified | Special::Broadcast | Special::Multicast | Special::Reserved,
            ) => true,
            Some(
                Special::Loopback
                | Special::Metadata
                | Special::LinkLocal
                | Special::Private
                | Special::NotPublic,
            )
            | None => false,
        };
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
mod tests;
