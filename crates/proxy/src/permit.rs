//! The third stage: may this client be connected, and where to?

use std::net::{IpAddr, SocketAddr};

use crate::accept::refuse;
use crate::addr::{ClaimedSource, Target};
use crate::frame::Framed;
use crate::outcome::Failure;
use crate::tcp::TcpProxy;

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
    /// [`Failure::Source`], [`Failure::ReplyPath`]; the connection is reset.
    pub fn decide(framed: &Framed, proxy: &TcpProxy) -> Result<Self, Failure> {
        decide(framed, proxy).map_err(|failure| refuse(&framed.stream, failure))
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

fn decide(framed: &Framed, proxy: &TcpProxy) -> Result<Permit, Failure> {
    let client = framed
        .claim
        .map_or_else(|| framed.peer.ip(), |claim| claim.0.ip());
    let target = match client {
        IpAddr::V4(_) => proxy.config.upstream.target_v4,
        IpAddr::V6(_) => proxy.config.upstream.target_v6,
    };
    if framed.claim.is_some() {
        proxy
            .config
            .source_policy
            .admit(client, |ip| proxy.own_addresses.kind_of(ip))?;
        if !proxy.reply_path.is_sound(target) {
            return Err(Failure::ReplyPath);
        }
    }
    Ok(Permit {
        source: framed.claim,
        target,
    })
}

impl Permit {
    /// The source as the target's socket can bear it.
    pub(crate) fn bind_to(&self) -> Option<SocketAddr> {
        self.source.map(|ClaimedSource(source)| source)
    }
}
