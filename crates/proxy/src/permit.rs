//! The third stage: may this client be connected, and where to?

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use peername_sys::netlink::Transport;

use crate::addr::{ClaimedSource, LocalAddr, PeerAddr, Target};
use crate::config::{Config, OnCollision, TargetRule};
use crate::destination::{Around, Destinations, Listening, MOST_HOPS, Refused};
use crate::outcome::Failure;
use crate::own_addresses::{Kind, OwnAddresses};
use crate::routes::Backend;
use crate::watchdog::ReplyPath;

/// What is decided by, whatever carried the header. Whoever makes it keeps `own_addresses` and
/// `reply_path` fresh.
#[derive(Debug)]
pub struct Rules {
    /// What the operator said.
    pub config: Arc<Config>,
    /// What no client can have.
    pub own_addresses: OwnAddresses,
    /// Whether replies come back.
    pub reply_path: Arc<ReplyPath>,
    /// What this process listens on: no header may name it as a destination.
    pub listening: Listening,
}

/// A header that has been read: of a connection ([`crate::frame::Framed`]) or of a datagram.
pub(crate) trait Claims {
    /// The client, or `None` when the header speaks for nobody.
    fn claim(&self) -> Option<ClaimedSource>;

    /// Who really sent it.
    fn peer(&self) -> PeerAddr;

    /// Where the client connected to, or `None` when the header does not tell.
    fn destination(&self) -> Option<SocketAddr>;

    /// Through how many proxies it came, as far as the header tells.
    fn hops(&self) -> u8;

    /// What it came over, and is to go on over.
    fn transport(&self) -> Transport;
}

/// Leave to connect, from one source to one target. The only thing that opens an upstream socket.
#[derive(Debug)]
pub struct Permit {
    source: Option<ClaimedSource>,
    target: Target,
    on_collision: OnCollision,
}

impl Permit {
    /// Asks the source policy, and whether replies to a spoofed connection would come back.
    ///
    /// The target follows the client's family, not the balancer's: an IPv6 client behind an IPv4
    /// balancer goes to the IPv6 target. Without a claim the peer's family decides. Where headers may
    /// name the destination, one that does is the target.
    ///
    /// # Errors
    ///
    /// [`Failure::Source`], [`Failure::Destination`], [`Failure::ReplyPath`].
    pub(crate) fn decide(
        framed: &impl Claims,
        listener: LocalAddr,
        rules: &Rules,
    ) -> Result<Self, Failure> {
        let claim = framed.claim();
        let client = claim.map_or_else(|| framed.peer().ip(), |claim| claim.0.ip());
        let own = |ip| rules.own_addresses.kind_of(ip);
        if claim.is_some() {
            rules.config.source_policy.admit(client, own)?;
        }
        let named = match &rules.config.destinations {
            Some(destinations) => rules.named(destinations, framed, client)?,
            None => None,
        };
        let target = named.unwrap_or_else(|| rules.target_of(client).of(listener));
        let backend = Backend {
            address: target.0,
            transport: framed.transport(),
        };
        // What is sent to an address of this host stays here whatever the routes.
        let is_ours = client.is_loopback() || own(client) == Some(Kind::Own);
        let mark = rules.config.upstream.mark;
        let sound = match (claim, named) {
            (None, _) => true,
            (Some(_), _) if is_ours => true,
            (Some(_), None) => rules.reply_path.is_sound(backend, mark),
            (Some(_), Some(_)) => !rules.is_here(target) || rules.reply_path.learns(backend, mark),
        };
        if !sound {
            return Err(Failure::ReplyPath);
        }
        Ok(Self {
            source: claim,
            target,
            on_collision: match named {
                // Both ends are the client's own, so that a second one is the first coming round.
                Some(_) if framed.transport() == Transport::Tcp => OnCollision::Fail,
                _ => rules.config.upstream.on_collision,
            },
        })
    }

    /// The client's address, or `None` to connect as ourselves.
    pub fn source(&self) -> Option<ClaimedSource> {
        self.source
    }

    /// The backend.
    pub fn target(&self) -> Target {
        self.target
    }

    /// What is done when the source's port is taken.
    pub(crate) fn on_collision(&self) -> OnCollision {
        self.on_collision
    }
}

impl Rules {
    /// Where clients of this address's family go.
    pub(crate) fn target_of(&self, client: IpAddr) -> TargetRule {
        match client {
            IpAddr::V4(_) => self.config.upstream.target_v4,
            IpAddr::V6(_) => self.config.upstream.target_v6,
        }
    }

    /// The destination that the header names, where it may; `None` when it names none.
    fn named(
        &self,
        destinations: &Destinations,
        framed: &impl Claims,
        client: IpAddr,
    ) -> Result<Option<Target>, Refused> {
        let Some(asked) = framed.destination() else {
            return Ok(None);
        };
        let asked = SocketAddr::new(asked.ip().to_canonical(), asked.port());
        if asked.is_ipv4() != client.is_ipv4() {
            return Err(Refused::Family);
        }
        if framed.hops() >= MOST_HOPS {
            return Err(Refused::Loop);
        }
        let around = Around {
            own: &|ip| self.own_addresses.kind_of(ip),
            listening: &self.listening,
            source_is_trusted: framed.claim().is_some() && self.config.trust.contains(client),
        };
        destinations.admit(asked, around)?;
        Ok(Some(Target(asked)))
    }

    fn is_here(&self, target: Target) -> bool {
        let ip = target.0.ip();
        ip.is_loopback() || self.own_addresses.kind_of(ip) == Some(Kind::Own)
    }
}

impl Permit {
    /// The source as the target's socket can bear it.
    pub(crate) fn bind_to(&self) -> Option<SocketAddr> {
        self.source.map(|ClaimedSource(source)| source)
    }
}
