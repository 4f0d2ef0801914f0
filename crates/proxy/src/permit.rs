//! The third stage: may this client be connected, and where to?

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use peername_sys::netlink::Transport;

use crate::addr::{ClaimedSource, LocalAddr, PeerAddr, Target};
use crate::config::{Config, TargetRule};
use crate::outcome::Failure;
use crate::own_addresses::OwnAddresses;
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
}

/// A header that has been read: of a connection ([`crate::frame::Framed`]) or of a datagram.
pub(crate) trait Claims {
    /// The client, or `None` when the header speaks for nobody.
    fn claim(&self) -> Option<ClaimedSource>;

    /// Who really sent it.
    fn peer(&self) -> PeerAddr;

    /// What it came over, and is to go on over.
    fn transport(&self) -> Transport;
}

/// Leave to connect, from one source to one target. The only thing that opens an upstream socket.
#[derive(Debug)]
pub struct Permit {
    source: Option<ClaimedSource>,
    target: Target,
}

impl Permit {
    /// Asks the source policy, and whether replies to a spoofed connection would come back.
    ///
    /// The target follows the client's family, not the balancer's: an IPv6 client behind an IPv4
    /// balancer goes to the IPv6 target. Without a claim the peer's family decides.
    ///
    /// # Errors
    ///
    /// [`Failure::Source`], [`Failure::ReplyPath`].
    pub(crate) fn decide(
        framed: &impl Claims,
        listener: LocalAddr,
        rules: &Rules,
    ) -> Result<Self, Failure> {
        let claim = framed.claim();
        let client = claim.map_or_else(|| framed.peer().ip(), |claim| claim.0.ip());
        let target = rules.target_of(client).of(listener);
        if claim.is_some() {
            let own = |ip| rules.own_addresses.kind_of(ip);
            rules.config.source_policy.admit(client, own)?;
            let backend = Backend {
                address: target.0,
                transport: framed.transport(),
            };
            if !rules.reply_path.is_sound(backend) {
                return Err(Failure::ReplyPath);
            }
        }
        Ok(Self {
            source: claim,
            target,
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
}

impl Rules {
    /// Where clients of this address's family go.
    pub(crate) fn target_of(&self, client: IpAddr) -> TargetRule {
        match client {
            IpAddr::V4(_) => self.config.upstream.target_v4,
            IpAddr::V6(_) => self.config.upstream.target_v6,
        }
    }
}

impl Permit {
    /// The source as the target's socket can bear it.
    pub(crate) fn bind_to(&self) -> Option<SocketAddr> {
        self.source.map(|ClaimedSource(source)| source)
    }
}
