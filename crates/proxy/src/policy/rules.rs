//! The rules of a service, and how they decide about a header's claims.

use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::Arc;

use peername_proto::SourceRefusal;
use peername_server::access::clients::{ClientRefusal, HeaderClient};
use peername_server::addr::{ClaimedSource, Target};
use peername_server::own_addresses::OwnAddresses;
use peername_sys::Transport;

use crate::backend::Backend;
use crate::config::{Config, OnCollision, SourcePort, TargetRule};
use crate::outcome::Failure;
use crate::policy::claims::Claims;
use crate::policy::destination::{DestinationContext, DestinationRefusal, MAX_HOPS, OwnPorts};
use crate::reply_path::monitor::ReplyPathMonitor;

/// Everything that decides about a connection or session. The owner keeps `own_addresses` and `reply_path` up to date.
#[derive(Debug)]
pub struct Rules {
    /// The configuration.
    pub config: Arc<Config>,
    /// The addresses of this host, which no client can have.
    pub own_addresses: OwnAddresses,
    /// Whether backends' replies come back to this host.
    pub reply_path: Arc<ReplyPathMonitor>,
    /// The ports this process listens on: no header may name them as a destination on this host.
    pub own_ports: OwnPorts,
}

impl Rules {
    /// Reports a failure to the reply path monitor where it may be due to the host's routes or NAT rules: no answer, or a
    /// replaced client's address.
    pub(crate) fn report_failure(&self, target: Target, transport: Transport, failure: &Failure) {
        let backend = Backend::new(target.0, transport);
        match failure {
            Failure::ConnectTimeout { .. } => self.reply_path.report_timeout(backend, self.mark()),
            Failure::SourceTranslated { client, .. } => {
                self.reply_path
                    .report_translated(client.ip(), backend, self.mark());
            }
            _ => {}
        }
    }

    /// The target of clients of the address family of `client`.
    pub(crate) fn target_for(&self, client: IpAddr) -> Result<TargetRule, Failure> {
        let targets = &self.config.upstream.targets;
        targets
            .for_client(client)
            .ok_or(Failure::NoTarget { client })
    }

    /// The target of connections without a client, such as a balancer's health checks: that of the balancer's family if there
    /// is one, else the other, because no client's address has to be kept.
    pub(crate) fn target_without_client(&self, peer: IpAddr) -> Result<TargetRule, Failure> {
        self.target_for(peer)
            .or_else(|failure| self.config.upstream.targets.iter().next().ok_or(failure))
    }

    /// Applies the source policy to the claimed source. `None` when the header claims no source, or the balancer's own.
    pub(crate) fn admit_source(
        &self,
        claims: &Claims,
    ) -> Result<Option<ClaimedSource>, SourceRefusal> {
        let Some(ClaimedSource(claim)) = claims.facts.claim else {
            return Ok(None);
        };
        let role_on_host = |ip| self.own_addresses.kind_of(ip);
        let policy = self.config.source_policy;
        let source = policy.admit_claim(claim, claims.peer.0, role_on_host)?;
        Ok(source.map(ClaimedSource))
    }

    /// Applies the lists of clients and the required TLVs.
    pub(crate) fn admit_client(&self, header: HeaderClient) -> Result<(), ClientRefusal> {
        let is_own = |ip| self.is_on_this_host(ip);
        self.config.clients.admit(header, is_own)
    }

    /// Applies the destination policy to the destination that the header names. `None` when it names none, or when
    /// headers may not choose the destination.
    pub(crate) fn admit_destination(
        &self,
        claims: &Claims,
        client: IpAddr,
    ) -> Result<Option<Target>, Failure> {
        let (Some(policy), Some(destination)) =
            (&self.config.destination_policy, claims.facts.destination)
        else {
            return Ok(None);
        };
        // Only the client's own port ends a loop (`Rules::source_port`).
        if claims.facts.claim.is_some_and(|claim| claim.0.port() == 0) {
            return Err(SourceRefusal::NoPort.into());
        }
        let refuse = |refusal| Failure::Destination {
            destination,
            refusal,
        };
        if destination.is_ipv4() != client.is_ipv4() {
            return Err(refuse(DestinationRefusal::Family));
        }
        if claims.hops >= MAX_HOPS {
            return Err(refuse(DestinationRefusal::Loop));
        }
        let context = DestinationContext {
            kind_of: &|ip| self.own_addresses.kind_of(ip),
            own_ports: &self.own_ports,
            is_source_trusted: self.config.trust.contains(client) && !self.trusts_all(client),
        };
        policy.admit(destination, context).map_err(refuse)?;
        Ok(Some(Target(destination)))
    }

    /// Whether every client of this family may send headers, and loops end. Such a client could claim any source directly, so
    /// it gains nothing from a connection that loops back here. A loop ends because each pass removes a header that the client
    /// sent, unless `--send-proxy` adds one each time.
    fn trusts_all(&self, client: IpAddr) -> bool {
        self.config.trust.contains_family_of(client) && self.config.upstream.send_proxy.is_none()
    }

    /// The source port of the upstream connection, and the policy for a taken port. `named` is the header's
    /// destination, if headers choose the destination.
    pub(crate) fn source_port(
        &self,
        claims: &Claims,
        named: Option<Target>,
    ) -> (SourcePort, OnCollision) {
        let upstream = &self.config.upstream;
        match named {
            // Both ends of the 4-tuple are the client's own, so a collision means that the connection loops.
            Some(_) if claims.transport == Transport::Tcp => (SourcePort::Keep, OnCollision::Fail),
            _ => (upstream.source_port, upstream.on_collision),
        }
    }

    pub(crate) fn mark(&self) -> Option<NonZeroU32> {
        self.config.upstream.mark
    }

    /// Whether the address is loopback or another one of this host.
    pub(crate) fn is_on_this_host(&self, ip: IpAddr) -> bool {
        self.own_addresses.is_on_this_host(ip)
    }
}
