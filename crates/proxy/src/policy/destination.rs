//! Which destinations a header may name (`--dynamic-destination`).
//!
//! Whoever writes the header then chooses where this host connects to, and from which address. So
//! nothing is allowed but what the operator has listed; and what could lead back here, or to what only
//! this host may ask, is refused although it is listed.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use peername_proto::embedded_ipv4;
use peername_server::destination_list::AllowedDestination;
use peername_server::metadata_service::is_metadata;

use peername_server::own_addresses::LocalKind;

/// The destinations that may be connected to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Destinations(Vec<AllowedDestination>);

/// What a decision needs to know beside the destination.
#[derive(Clone, Copy)]
pub(crate) struct Around<'a> {
    /// What an address is to this host.
    pub(crate) own: &'a dyn Fn(IpAddr) -> Option<LocalKind>,
    /// What this process listens on.
    pub(crate) listening: &'a Listening,
    /// Whether the client has an address from which headers would be believed.
    pub(crate) source_is_trusted: bool,
}

/// What this process listens on, by whatever protocol.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listening {
    /// The ports.
    pub ports: BTreeSet<u16>,
    /// Whether TPROXY rules bring connections here: then any address may turn out to be this host.
    pub transparent: bool,
}

/// Why a destination is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Refused {
    /// No entry covers it.
    #[error("not on the list; --allow-destination adds it")]
    NotListed,
    /// Loopback, and no entry for loopback names the port. A network that happens to contain it, such
    /// as 0.0.0.0/0, does not count.
    #[error("a port on loopback that is not listed; --allow-destination 127.0.0.1:PORT adds it")]
    LoopbackNotListed,
    /// A port of this host that we listen on: the connection would come back to us.
    #[error("a listener of this proxy itself")]
    OwnListener,
    /// This host, from a client whose address is trusted to send headers: if anything here, such as
    /// a TPROXY rule, brings the connection back to us, the payload would be believed as a header.
    #[error(
        "this host, while the client's own address is trusted to send headers; name the balancers \
         more narrowly in --trust"
    )]
    TrustedSource,
    /// A cloud's metadata service, which tells secrets to whoever asks from this host.
    #[error("a cloud's metadata service; only an entry for this very address allows it")]
    Metadata,
    /// 169.254.0.0/16 or fe80::/10.
    #[error("a link-local address")]
    LinkLocal,
    /// 224.0.0.0/4 or ff00::/8.
    #[error("a multicast address")]
    Multicast,
    /// 0.0.0.0/8 or `::`: for connect(2) that is this host.
    #[error("an unspecified address")]
    Unspecified,
    /// 240.0.0.0/4 or the broadcast address of a network of this host's.
    #[error("a broadcast or reserved address")]
    Broadcast,
    /// An IPv4 address in an IPv6 form (RFC 4291, RFC 6052, RFC 3056) that is this host's, loopback
    /// or special.
    #[error("an IPv6 form of an IPv4 address that is this host's or special")]
    Embedded,
    /// Port 0.
    #[error("port 0")]
    NoPort,
    /// The client's address is of the other family.
    #[error("of another address family than the client")]
    Family,
    /// It came through [`MOST_HOPS`] proxies already.
    #[error("asked for through {MOST_HOPS} proxies already: this is a loop")]
    Loop,
}

impl Refused {
    /// A stable name for metrics.
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

impl Destinations {
    /// Those of a list; `None` when it is empty, because "none" is never what was meant.
    pub fn new(allowed: Vec<AllowedDestination>) -> Option<Self> {
        (!allowed.is_empty()).then_some(Self(allowed))
    }

    /// Decides on a destination, in whatever encoding it came.
    ///
    /// # Errors
    ///
    /// [`Refused`] says why.
    pub(crate) fn admit(&self, asked: SocketAddr, around: Around<'_>) -> Result<(), Refused> {
        let (ip, port) = (asked.ip().to_canonical(), asked.port());
        if port == 0 {
            return Err(Refused::NoPort);
        }
        special(ip)?;
        if embedded_ipv4(ip).is_some_and(|inner| !is_ordinary(inner.into(), around)) {
            return Err(Refused::Embedded);
        }
        let entries = || self.0.iter().filter(|entry| entry.covers(ip, port));
        if is_metadata(ip) {
            let is_literal = entries().any(|entry| entry.is_exactly(ip));
            return is_literal.then_some(()).ok_or(Refused::Metadata);
        }
        if is_link_local(ip) {
            return Err(Refused::LinkLocal);
        }
        match (around.own)(ip) {
            Some(LocalKind::NetworkOrBroadcast) => return Err(Refused::Broadcast),
            Some(LocalKind::Own) => around.admits_this_host(port)?,
            None if ip.is_loopback() => around.admits_this_host(port)?,
            None if around.listening.transparent => around.admits_another_self()?,
            None => {}
        }
        if ip.is_loopback() && !entries().any(AllowedDestination::is_loopback) {
            return Err(Refused::LoopbackNotListed);
        }
        entries().next().map(|_| ()).ok_or(Refused::NotListed)
    }
}

impl Around<'_> {
    fn admits_this_host(&self, port: u16) -> Result<(), Refused> {
        if self.listening.ports.contains(&port) {
            return Err(Refused::OwnListener);
        }
        self.admits_another_self()
    }

    fn admits_another_self(&self) -> Result<(), Refused> {
        match self.source_is_trusted {
            true => Err(Refused::TrustedSource),
            false => Ok(()),
        }
    }
}

fn special(ip: IpAddr) -> Result<(), Refused> {
    if ip.is_multicast() {
        return Err(Refused::Multicast);
    }
    match ip {
        IpAddr::V4(ip) => match ip.octets() {
            [0, ..] => Err(Refused::Unspecified),
            [240..=255, ..] => Err(Refused::Broadcast),
            _ => Ok(()),
        },
        IpAddr::V6(ip) if ip.is_unspecified() => Err(Refused::Unspecified),
        IpAddr::V6(_) => Ok(()),
    }
}

fn is_ordinary(ip: IpAddr, around: Around<'_>) -> bool {
    let is_kept_from_headers = ip.is_loopback() || is_link_local(ip) || is_metadata(ip);
    special(ip).is_ok() && !is_kept_from_headers && (around.own)(ip).is_none()
}

fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}

/// Through how many proxies a connection may have come, as far as their headers tell. More would let a
/// loop take more connections before it ends, fewer would forbid chains that somebody may want.
pub const MOST_HOPS: u8 = 4;

#[cfg(test)]
mod tests;
