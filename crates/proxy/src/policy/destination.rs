//! The destination policy: which destinations a header may name (`--dynamic-destination`).
//!
//! The sender of the header then chooses which address this host connects to, and from which source. So only destinations
//! that the operator has listed are allowed. Those that could loop back to this process, or that serve only this host
//! (loopback, metadata services), are refused even if a listed network contains them.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use peername_proto::{HostAddress, Special, embedded_ipv4, special};
use peername_server::destination_list::DestinationList;

/// The destinations that headers may name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DestinationPolicy(DestinationList);

/// The facts that a decision depends on, besides the destination.
#[derive(Clone, Copy)]
pub struct DestinationContext<'a> {
    /// Looks up whether an address is special on this host.
    pub kind_of: &'a dyn Fn(IpAddr) -> Option<HostAddress>,
    /// The ports this process listens on.
    pub own_ports: &'a OwnPorts,
    /// Whether the client's address is trusted to send headers, so that its payload could be taken for one.
    pub is_source_trusted: bool,
}

/// The ports this process listens on, TCP and UDP.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnPorts {
    /// The port numbers.
    pub ports: BTreeSet<u16>,
    /// Whether TPROXY rules redirect connections to this process: then any address may lead to it.
    pub is_transparent: bool,
}

/// The reason why a destination is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum DestinationRefusal {
    /// No entry of the list covers it.
    #[error("not on the list; --allow-destination adds it")]
    NotListed,
    /// A loopback address with a port that no entry for loopback lists. A wider network that contains loopback, such as
    /// 0.0.0.0/0, does not count.
    #[error("a port on loopback that is not listed; --allow-destination 127.0.0.1:PORT adds it")]
    LoopbackNotListed,
    /// A port of this host that this process listens on: the connection would loop.
    #[error("a listener of this proxy itself")]
    OwnListener,
    /// The client's address is trusted to send headers, and the destination is this host, or with TPROXY any host: if a rule
    /// here looped the connection back to this process, its payload would be trusted as a header.
    #[error(
        "one that could lead back to this process, while the client's own address is trusted to send \
         headers; name the balancers more narrowly in --trust"
    )]
    TrustedSource,
    /// A cloud's metadata service, which gives credentials to any process of this host.
    #[error("a cloud's metadata service; only an entry for exactly this address allows it")]
    Metadata,
    /// 169.254.0.0/16 or fe80::/10.
    #[error("a link-local address")]
    LinkLocal,
    /// 224.0.0.0/4 or ff00::/8.
    #[error("a multicast address")]
    Multicast,
    /// 0.0.0.0/8 or `::`: connect(2) takes that for this host.
    #[error("an unspecified address")]
    Unspecified,
    /// 240.0.0.0/4, an end of the loopback network, or the network or broadcast address of one of this host's networks.
    #[error("a broadcast or reserved address")]
    Broadcast,
    /// An IPv6 address that embeds an IPv4 address (RFC 4291, RFC 6052, RFC 3056) which is this host's, loopback or
    /// special.
    #[error("an IPv6 form of an IPv4 address that is this host's or special")]
    Embedded,
    /// Port 0.
    #[error("port 0")]
    NoPort,
    /// The client's address is of the other family.
    #[error("of another address family than the client")]
    Family,
    /// The hop count has reached [`MAX_HOPS`].
    #[error("reached through {MAX_HOPS} proxies already: this is a loop")]
    Loop,
}

impl DestinationRefusal {
    /// The stable reason code for metrics and logs.
    pub fn reason(self) -> &'static str {
        match self {
            Self::NotListed => "destination_not_listed",
            Self::LoopbackNotListed => "destination_loopback",
            Self::OwnListener => "destination_own_listener",
            Self::TrustedSource => "destination_trusted_source",
            Self::Metadata => "destination_metadata",
            Self::LinkLocal => "destination_link_local",
            Self::Multicast => "destination_multicast",
            Self::Unspecified => "destination_unspecified",
            Self::Broadcast => "destination_broadcast",
            Self::Embedded => "destination_embedded",
            Self::NoPort => "destination_port_0",
            Self::Family => "destination_family",
            Self::Loop => "destination_loop",
        }
    }
}

impl DestinationPolicy {
    /// Whether a loopback address of this family is listed.
    pub fn lists_loopback(&self, is_ipv4: bool) -> bool {
        self.0.lists_loopback(is_ipv4)
    }

    /// Allows the destinations of a list; `None` when it is empty, which is never what was meant.
    pub fn new(allowed: DestinationList) -> Option<Self> {
        (!allowed.is_empty()).then_some(Self(allowed))
    }

    /// Decides about a destination. An IPv4-mapped address is treated as the IPv4 address. Another IPv6 address that embeds an
    /// IPv4 address is refused if that is special.
    pub fn admit(
        &self,
        destination: SocketAddr,
        context: DestinationContext<'_>,
    ) -> Result<(), DestinationRefusal> {
        let (ip, port) = (destination.ip().to_canonical(), destination.port());
        if port == 0 {
            return Err(DestinationRefusal::NoPort);
        }
        let special = special(ip);
        match special {
            Some(Special::Multicast) => return Err(DestinationRefusal::Multicast),
            Some(Special::Unspecified) => return Err(DestinationRefusal::Unspecified),
            Some(Special::Broadcast | Special::Reserved) => {
                return Err(DestinationRefusal::Broadcast);
            }
            Some(Special::LinkLocal) => return Err(DestinationRefusal::LinkLocal),
            // Decided below.
            Some(Special::Loopback | Special::Metadata) => {}
            None | Some(Special::Private | Special::NotPublic) => {}
        }
        if embedded_ipv4(ip).is_some_and(|embedded| !is_ordinary(embedded.into(), context)) {
            return Err(DestinationRefusal::Embedded);
        }
        let is_listed = self.0.allows(ip, port);
        let is_loopback = special == Some(Special::Loopback);
        if special == Some(Special::Metadata) {
            return is_listed.then_some(()).ok_or(DestinationRefusal::Metadata);
        }
        match (context.kind_of)(ip) {
            Some(HostAddress::NetworkOrBroadcast) => return Err(DestinationRefusal::Broadcast),
            Some(HostAddress::Own) => context.admit_this_host(port)?,
            None if is_loopback => context.admit_this_host(port)?,
            None if context.own_ports.is_transparent => context.admit_possible_loop()?,
            None => {}
        }
        if is_listed {
            Ok(())
        } else if is_loopback {
            Err(DestinationRefusal::LoopbackNotListed)
        } else {
            Err(DestinationRefusal::NotListed)
        }
    }
}

impl DestinationContext<'_> {
    fn admit_this_host(&self, port: u16) -> Result<(), DestinationRefusal> {
        if self.own_ports.ports.contains(&port) {
            return Err(DestinationRefusal::OwnListener);
        }
        self.admit_possible_loop()
    }

    /// Admits a destination that might lead back to this process, unless its payload could then be taken for a header.
    fn admit_possible_loop(&self) -> Result<(), DestinationRefusal> {
        if self.is_source_trusted {
            Err(DestinationRefusal::TrustedSource)
        } else {
            Ok(())
        }
    }
}

/// Whether the address is neither restricted nor one of this host.
fn is_ordinary(ip: IpAddr, context: DestinationContext<'_>) -> bool {
    special(ip).is_none_or(Special::is_private_network) && (context.kind_of)(ip).is_none()
}

/// Limit of the proxies that a connection has passed, by the hop count of its header. A higher limit lets a loop open more
/// connections before it ends; a lower limit allows only shorter chains of proxies.
pub const MAX_HOPS: u8 = 4;

#[cfg(test)]
mod tests;
