//! The third stage of a connection (see [`crate::conn`]): decides whether the client may connect, and to which target.

use std::net::SocketAddr;

use peername_server::access::clients::HeaderClient;
use peername_server::addr::{ClaimedSource, LocalAddr, PeerAddr, Target};

use crate::backend::Backend;
use crate::config::{OnCollision, SourcePort};
use crate::outcome::Failure;
use crate::policy::claims::Claims;
use crate::policy::rules::Rules;

/// Permission to connect from one source to one target. Nothing else connects a client that a header claims.
#[derive(Debug)]
pub struct Permit {
    source: Option<ClaimedSource>,
    target: Target,
    is_target_on_this_host: bool,
    source_port: SourcePort,
    on_collision: OnCollision,
}

/// A permit that was confirmed by the lists in force: permission to connect a client over TCP.
///
/// [`ConnectedPair::open`](crate::connect::ConnectedPair::open) takes nothing else:
///
/// ```
/// use peername_proxy::conn::header::ClaimedConn;
/// use peername_proxy::connect::{ConnectedPair, Connector};
/// use peername_proxy::policy::permit::ConfirmedPermit;
///
/// async fn open(claimed: ClaimedConn, permit: ConfirmedPermit, connector: &Connector) {
///     let _ = ConnectedPair::open(claimed, &permit, connector).await;
/// }
/// ```
///
/// A permit that was not confirmed opens no connection. Expected error: mismatched types (E0308), at `&permit`.
///
/// ```compile_fail,E0308
/// use peername_proxy::conn::header::ClaimedConn;
/// use peername_proxy::connect::{ConnectedPair, Connector};
/// use peername_proxy::policy::permit::Permit;
///
/// async fn open(claimed: ClaimedConn, permit: Permit, connector: &Connector) {
///     let _ = ConnectedPair::open(claimed, &permit, connector).await;
/// }
/// ```
#[derive(Debug)]
pub struct ConfirmedPermit(Permit);

impl ConfirmedPermit {
    /// The permit itself.
    pub(crate) fn as_permit(&self) -> &Permit {
        &self.0
    }
}

impl Permit {
    /// Applies the source policy, the lists of clients and the destination policy, and checks that replies to a spoofed
    /// connection would come back.
    ///
    /// Where headers may choose the destination, the target is the one that the header names. Otherwise it is the target of the
    /// client's address family: an IPv6 client behind an IPv4 balancer goes to the IPv6 target. If the header claims no source,
    /// it is the target of the peer's family, or the only one.
    pub(crate) fn decide(
        claims: &Claims,
        listener: LocalAddr,
        rules: &Rules,
    ) -> Result<Self, Failure> {
        let source = rules.admit_source(claims)?;
        rules.admit_client(HeaderClient {
            claim: claims.facts.claim,
            peer: claims.peer,
            tlvs: claims.tlv_refusal.map_or(Ok(()), Err),
        })?;
        let Some(source) = source else {
            return Self::without_source(claims.peer, listener, rules);
        };
        let client = source.0.ip();
        let named = rules.admit_destination(claims, client)?;
        let target = match named {
            Some(named) => named,
            None => rules.target_for(client)?.for_listener(listener),
        };
        let backend = Backend {
            address: target.0,
            transport: claims.transport,
        };
        let is_local = rules.is_on_this_host(target.0.ip());
        let is_sound = if is_local {
            // The monitor may not know the target yet: a header names it, or it is configured for an address family that was
            // not expected. Such a target is probed from its first client on.
            rules.reply_path.is_sound_or_enqueue(backend, rules.mark())
        } else {
            // Destinations on other hosts that headers name are not probed.
            named.is_some() || rules.reply_path.is_sound(backend, rules.mark())
        };
        // Replies to an address of this host stay on it, whatever the routes.
        if !is_sound && !rules.is_on_this_host(client) {
            return Err(Failure::ReplyPath {
                backend,
                // Replies of a local backend are recognised without the mark.
                mark: rules.mark().filter(|_| !is_local),
            });
        }
        let (source_port, on_collision) = rules.source_port(claims, named);
        Ok(Self {
            source: Some(source),
            target,
            is_target_on_this_host: is_local,
            source_port,
            on_collision,
        })
    }

    /// Applies the lists of clients of the rules that are in force now, which may have changed while the header was awaited. To
    /// be called once the client is on record, so that a later change finds the connection and ends it.
    ///
    /// `in_force` is `None` for a listener that a reload has closed meanwhile. Nothing is left to apply then: [`Self::decide`]
    /// has just applied the lists of the rules that the connection was accepted with, and a changed list file changes these,
    /// too.
    pub(crate) fn confirm(
        self,
        claims: &Claims,
        in_force: Option<&Rules>,
    ) -> Result<ConfirmedPermit, Failure> {
        if let Some(rules) = in_force {
            let client = HeaderClient::of_read_header(claims.facts.claim, claims.peer);
            rules.admit_client(client)?;
        }
        Ok(ConfirmedPermit(self))
    }

    /// A permit to connect from an address of this host. A destination in the header is ignored: without a client, no policy
    /// has admitted it.
    fn without_source(peer: PeerAddr, listener: LocalAddr, rules: &Rules) -> Result<Self, Failure> {
        let target = rules
            .target_without_client(peer.ip())?
            .for_listener(listener);
        Ok(Self {
            source: None,
            target,
            is_target_on_this_host: rules.is_on_this_host(target.0.ip()),
            source_port: rules.config.upstream.source_port,
            on_collision: rules.config.upstream.on_collision,
        })
    }

    /// The client's address, or `None` to connect from an address of this host.
    pub fn source(&self) -> Option<ClaimedSource> {
        self.source
    }

    /// The backend.
    pub fn target(&self) -> Target {
        self.target
    }

    /// Whether the backend's address is this host's.
    pub(crate) fn is_target_on_this_host(&self) -> bool {
        self.is_target_on_this_host
    }

    /// The address to bind the upstream socket to; `None` to connect from an address of this host. Port 0 means any port, even
    /// where the header claims port 0.
    pub(crate) fn bind_to(&self) -> Option<SocketAddr> {
        let ClaimedSource(source) = self.source?;
        Some(match self.source_port {
            SourcePort::Keep => source,
            SourcePort::Any => SocketAddr::new(source.ip(), 0),
        })
    }

    /// The collision policy.
    pub(crate) fn on_collision(&self) -> OnCollision {
        self.on_collision
    }
}
