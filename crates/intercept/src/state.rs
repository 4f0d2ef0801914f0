//! The state that all connections share.

pub mod metrics;

use std::cell::OnceCell;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use peername_server::addr::PeerAddr;
use prometheus_client::registry::Registry;
use tokio::sync::watch;

use crate::authz::{self, CheckService};
use crate::ca::Authority;
use crate::ca::mint::collector::MintCollector;
use crate::ca::mint::error::MintError;
use crate::ca::mint::{Mint, PreparedEpoch};
use crate::policy::access::Access;
use crate::policy::client_limit::ClientLimit;
use crate::policy::passthrough::Passthrough;
use crate::policy::pinned::PinnedClients;
use crate::upstream::Upstream;
use crate::upstream::trust::{OriginTls, TrustError};
use metrics::Metrics;

/// Rules and timeouts for the connections of clients.
#[derive(Debug)]
pub struct Rules {
    /// Hosts with TLS that is not terminated (`--passthrough`).
    pub passthrough: Passthrough,
    /// Clients that have refused the proxy's certificate for a host (`--auto-passthrough`).
    pub pinned: Option<PinnedClients>,
    /// The timeout from accept to a PROXY header, and again to a complete ClientHello or the head of a request; and
    /// from the first byte of any head to its last.
    pub opening_timeout: Duration,
    /// The timeout between two requests, and for bodies of which no byte moves.
    pub idle_timeout: Duration,
    /// The timeout for tunnels and streams on which no byte moves: they may be silent for long.
    pub tunnel_timeout: Duration,
}

/// A reload that was read and validated: access lists, trusted roots of origins, and the authority with a leaf key.
#[derive(Debug)]
pub struct Reload {
    access: Access,
    tls: OriginTls,
    epoch: PreparedEpoch,
}

/// Why a reload is refused.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    /// The authority.
    #[error(transparent)]
    Authority(#[from] MintError),
    /// The trusted roots of origins.
    #[error(transparent)]
    Trust(#[from] TrustError),
}

/// The proxy without its connections. Shared by all workers.
#[derive(Debug)]
pub struct InterceptState {
    access: ArcSwap<Access>,
    pub(crate) rules: Rules,
    pub(crate) mint: Arc<Mint>,
    pub(crate) upstream: Upstream,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) client_limit: ClientLimit,
    check: Option<CheckService>,
    draining: watch::Sender<bool>,
}

impl InterceptState {
    /// Assembles the state, for at most `connections` client connections.
    pub fn new(
        access: Access,
        rules: Rules,
        mint: Mint,
        upstream: Upstream,
        check: Option<CheckService>,
        connections: usize,
    ) -> Self {
        let (draining, _) = watch::channel(false);
        Self {
            access: ArcSwap::from_pointee(access),
            rules,
            mint: Arc::new(mint),
            upstream,
            metrics: Arc::default(),
            client_limit: ClientLimit::new(connections),
            check,
            draining,
        }
    }

    /// Prepares a reload: reads the trusted roots of origins again, and makes a leaf key. May take long, and changes
    /// nothing.
    ///
    /// # Errors
    ///
    /// The authority is not valid, or there is no trusted root to verify an origin by.
    pub fn prepare_reload(
        &self,
        access: Access,
        authority: Authority,
    ) -> Result<Reload, ReloadError> {
        Ok(Reload {
            access,
            tls: self.upstream.read_trust(&authority.certificates())?,
            epoch: self.mint.prepare(authority)?,
        })
    }

    /// Applies a reload to new connections. Connections that are open stay.
    pub fn apply(&self, reload: Reload) {
        self.mint.renew(reload.epoch);
        self.upstream.set_trust(reload.tls);
        self.access.store(Arc::new(reload.access));
    }

    /// Counts and logs a connection of this peer that ended before there was a request.
    pub(crate) fn count_unopened(&self, peer: PeerAddr, reason: &'static str) {
        self.metrics.count_unopened(reason);
        tracing::debug!(%peer, reason, "connection ended before there was a request");
    }

    /// The rules about clients that are in force now.
    pub(crate) fn access(&self) -> Arc<Access> {
        self.access.load_full()
    }

    /// Registers all metrics.
    pub fn register(&self, registry: &mut Registry) {
        self.metrics.register(registry);
        registry.register_collector(Box::new(MintCollector(Arc::clone(&self.mint))));
        if let Some(check) = &self.check {
            check.register(registry);
        }
    }

    /// Whether no connection is accepted any more.
    pub(crate) fn is_draining(&self) -> bool {
        *self.draining.borrow()
    }

    /// This worker's client of the check service, if one is configured.
    pub(crate) fn check(&self) -> Option<authz::CheckClient> {
        let check = self.check.as_ref()?;
        Some(CHECK.with(|client| client.get_or_init(|| check.client()).clone()))
    }

    /// Probes the check service, if one is configured.
    ///
    /// # Errors
    ///
    /// Why it can't be asked now.
    pub(crate) async fn probe_check(&self) -> Result<(), authz::AuthzError> {
        match &self.check {
            Some(check) => check.reach().await,
            None => Ok(()),
        }
    }

    /// Whether a check service is configured.
    pub(crate) fn has_check(&self) -> bool {
        self.check.is_some()
    }

    /// How many bytes of a request's body the check service is to see; 0 for none.
    pub(crate) fn max_checked_body(&self) -> usize {
        self.check.as_ref().map_or(0, CheckService::max_body)
    }

    /// Starts the drain: connections end as soon as they can.
    pub(crate) fn drain(&self) {
        self.draining.send_replace(true);
    }

    /// Returns once the drain has started.
    pub(crate) async fn wait_draining(&self) {
        // It can't fail: `self` holds the sender.
        let _ = self
            .draining
            .subscribe()
            .wait_for(|draining| *draining)
            .await;
    }
}

thread_local! {
    /// A process has one check service, and each of its workers one client of it.
    static CHECK: OnceCell<authz::CheckClient> = const { OnceCell::new() };
}
