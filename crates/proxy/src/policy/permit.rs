//! The third stage: may this client be connected, and where to?

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::sync::Arc;

use peername_sys::netlink::Transport;

use crate::backend::Backend;
use crate::config::{Config, OnCollision, SourcePort, TargetRule};
use crate::outcome::Failure;
use crate::policy::destination::{self, Around, Listening, MOST_HOPS};
use crate::policy::source::Refused;
use crate::reply_path::monitor::ReplyPathMonitor;
use peername_server::addr::{ClaimedSource, LocalAddr, PeerAddr, Target, canonical};
use peername_server::own_addresses::{LocalKind, OwnAddresses};

/// What is decided by, whatever carried the header. Whoever makes it keeps `own_addresses` and
/// `reply_path` fresh.
#[derive(Debug)]
pub struct Rules {
    /// What the operator said.
    pub config: Arc<Config>,
    /// What no client can have.
    pub own_addresses: OwnAddresses,
    /// Whether replies come back.
    pub reply_path: Arc<ReplyPathMonitor>,
    /// What this process listens on: no header may name it as a destination.
    pub listening: Listening,
}

/// A header that has been read: of a connection ([`crate::conn::header::ClaimedConn`]) or of a datagram.
pub(crate) trait HeaderClaims {
    /// The client, or `None` when the header speaks for nobody.
    fn claim(&self) -> Option<ClaimedSource>;

    /// Who really sent it.
    fn peer(&self) -> PeerAddr;

    /// Where the client connected to, an IPv4-mapped address in its IPv4 form; `None` when the header does
    /// not tell, as it never does when it speaks for nobody.
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
    source_port: SourcePort,
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
        framed: &impl HeaderClaims,
        listener: LocalAddr,
        rules: &Rules,
    ) -> Result<Self, Failure> {
        let Some(source) = rules.source(framed)? else {
            return Ok(rules.for_nobody(framed.peer(), listener));
        };
        let client = source.0.ip();
        let named = rules.named(framed, client)?;
        let target = named.unwrap_or_else(|| rules.target_of(client).for_listener(listener));
        let backend = Backend {
            address: target.0,
            transport: framed.transport(),
        };
        let is_here = rules.is_here(target.0.ip());
        let is_sound = match named {
            Some(_) if !is_here => true,
            None if !is_here => rules.reply_path.is_sound(backend, rules.mark()),
            // The target of a family that was not expected is tried as late as one that a header names.
            _ => rules.reply_path.is_sound_or_enqueue(backend, rules.mark()),
        };
        // What is sent to an address of this host stays here whatever the routes.
        if !is_sound && !rules.is_here(client) {
            return Err(Failure::ReplyPath);
        }
        let (source_port, on_collision) = rules.ports(framed, named);
        Ok(Self {
            source: Some(source),
            target,
            source_port,
            on_collision,
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

    /// What the connection is to come from; `None` for ourselves, port 0 for any.
    pub(crate) fn bind_to(&self) -> Option<SocketAddr> {
        let ClaimedSource(source) = self.source?;
        Some(match self.source_port {
            SourcePort::Keep => source,
            SourcePort::Any => SocketAddr::new(source.ip(), 0),
        })
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

    /// The client that the header names, if the policy allows it; `None` when it names nobody, or only
    /// whoever sent it.
    fn source(&self, framed: &impl HeaderClaims) -> Result<Option<ClaimedSource>, Refused> {
        let Some(claim) = framed.claim() else {
            return Ok(None);
        };
        if claim.0.port() == 0 {
            return Err(Refused::NoPort);
        }
        let own = |ip| self.own_addresses.kind_of(ip);
        match self.config.source_policy.admit(claim.0.ip(), own) {
            Ok(()) => Ok(Some(claim)),
            // A balancer on this host that says where its own connection comes from: in version 1 a
            // health check has no other words.
            Err(Refused::Loopback | Refused::Own) if canonical(framed.peer().0) == claim.0 => {
                Ok(None)
            }
            Err(refused) => Err(refused),
        }
    }

    /// Who speaks for nobody names no destination either.
    fn for_nobody(&self, peer: PeerAddr, listener: LocalAddr) -> Permit {
        Permit {
            source: None,
            target: self.target_of(peer.ip()).for_listener(listener),
            source_port: self.config.upstream.source_port,
            on_collision: self.config.upstream.on_collision,
        }
    }

    /// The destination that the header names, where it may; `None` when it names none.
    fn named(&self, framed: &impl HeaderClaims, client: IpAddr) -> Result<Option<Target>, Failure> {
        let (Some(destinations), Some(asked)) = (&self.config.destinations, framed.destination())
        else {
            return Ok(None);
        };
        let refuse = |refused| Failure::Destination { asked, refused };
        if asked.is_ipv4() != client.is_ipv4() {
            return Err(refuse(destination::Refused::Family));
        }
        if framed.hops() >= MOST_HOPS {
            return Err(refuse(destination::Refused::Loop));
        }
        let around = Around {
            own: &|ip| self.own_addresses.kind_of(ip),
            listening: &self.listening,
            source_is_trusted: self.config.trust.contains(client) && !self.believes_all(client),
        };
        destinations.admit(asked, around).map_err(refuse)?;
        Ok(Some(Target(asked)))
    }

    /// Whether this client, wherever it is, could claim what it likes by itself, so that a connection which came back here
    /// would gain it nothing. Each turn takes a header off what the client sent, so they end; unless we add one.
    fn believes_all(&self, client: IpAddr) -> bool {
        self.config.trust.trusts_all_of_family(client) && self.config.upstream.send_proxy.is_none()
    }

    /// Which port a connection comes from, and what happens when that is taken.
    fn ports(
        &self,
        framed: &impl HeaderClaims,
        named: Option<Target>,
    ) -> (SourcePort, OnCollision) {
        let upstream = &self.config.upstream;
        match named {
            // Both ends are the client's own, so that a second one is the first coming round.
            Some(_) if framed.transport() == Transport::Tcp => {
                (SourcePort::Keep, OnCollision::Fail)
            }
            _ => (upstream.source_port, upstream.on_collision),
        }
    }

    fn mark(&self) -> Option<NonZeroU32> {
        self.config.upstream.mark
    }

    pub(crate) fn is_here(&self, ip: IpAddr) -> bool {
        ip.is_loopback() || self.own_addresses.kind_of(ip) == Some(LocalKind::Own)
    }
}
