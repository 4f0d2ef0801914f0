//! What all connections have in common.

pub mod metrics;

use std::cell::OnceCell;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use peername_server::addr::PeerAddr;
use prometheus_client::registry::Registry;
use tokio::sync::watch;

use crate::policy::access::Access;
use crate::ca::Authority;
use crate::authz::{self, Check};
use crate::ca::mint::{self, Mint};
use crate::state::metrics::{Certificates, Metrics};
use crate::policy::passthrough::Passthrough;
use crate::policy::pinned::Pinned;
use crate::share::Shares;
use crate::upstream::{TrustError, Upstream, trust};

/// How clients are dealt with.
#[derive(Debug)]
pub struct Rules {
    /// Hosts whose TLS is not opened (`--passthrough`).
    pub passthrough: Passthrough,
    /// Clients that have refused us for a host (`--auto-passthrough`).
    pub pinned: Option<Pinned>,
    /// From accept to a PROXY header, and again to a complete ClientHello or the head of a request; and from the first
    /// octet of any head to its last.
    pub opening_timeout: Duration,
    /// Between two requests, and for bodies of which nothing moves.
    pub idle_timeout: Duration,
    /// For tunnels and streams on which nothing moves, and which may be silent for long.
    pub tunnel_timeout: Duration,
}

/// What has been read again, ready to go by: access lists, trusted roots of origins, and the authority with a leaf key.
#[derive(Debug)]
pub struct Renewal {
    access: Access,
    tls: trust::Tls,
    season: mint::Prepared,
}

/// Why what was read again can't be gone by.
#[derive(Debug, thiserror::Error)]
pub enum RenewError {
    /// The authority.
    #[error(transparent)]
    Authority(#[from] mint::Error),
    /// The authorities of origins.
    #[error(transparent)]
    Trust(#[from] TrustError),
}

/// The proxy, but for its connections.
#[derive(Debug)]
pub struct Site {
    access: ArcSwap<Access>,
    pub(crate) rules: Rules,
    pub(crate) mint: Mint,
    pub(crate) upstream: Upstream,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) shares: Shares,
    check: Option<Check>,
    draining: watch::Sender<bool>,
}

impl Site {
    /// Puts it together, for so many connections of clients.
    pub fn new(
        access: Access,
        rules: Rules,
        mint: Mint,
        upstream: Upstream,
        check: Option<Check>,
        connections: usize,
    ) -> Self {
        let (draining, _) = watch::channel(false);
        Self {
            access: ArcSwap::from_pointee(access),
            rules,
            mint,
            upstream,
            metrics: Arc::default(),
            shares: Shares::new(connections),
            check,
            draining,
        }
    }

    /// Reads again whom origins may be certified by, and makes a leaf key. It takes its time, and changes nothing.
    ///
    /// # Errors
    ///
    /// The authority is not valid, or no origin could be verified.
    pub fn prepare(&self, access: Access, authority: Authority) -> Result<Renewal, RenewError> {
        Ok(Renewal {
            access,
            tls: self.upstream.read_trust(&authority.certificates())?,
            season: self.mint.prepare(authority)?,
        })
    }

    /// Goes by this from now on. Connections that are open stay.
    pub fn renew(&self, renewal: Renewal) {
        self.mint.renew(renewal.season);
        self.upstream.trust(renewal.tls);
        self.access.store(Arc::new(renewal.access));
    }

    /// A connection of this peer ended before there was a request.
    pub(crate) fn unopened(&self, peer: PeerAddr, reason: &'static str) {
        self.metrics.unopened(reason);
        tracing::debug!(%peer, reason, "connection ended before there was a request");
    }

    /// Who may use the proxy.
    pub(crate) fn access(&self) -> Arc<Access> {
        self.access.load_full()
    }

    /// Adds all that is counted.
    pub fn register(self: &Arc<Self>, registry: &mut Registry) {
        self.metrics.register(registry);
        registry.register_collector(Box::new(Certificates(Arc::clone(self))));
        if let Some(check) = &self.check {
            check.register(registry);
        }
    }

    /// Whether nothing new is accepted any more.
    pub(crate) fn is_draining(&self) -> bool {
        *self.draining.borrow()
    }

    /// This worker's way to the check service, if there is one.
    pub(crate) fn check(&self) -> Option<authz::Client> {
        let check = self.check.as_ref()?;
        Some(CHECK.with(|client| client.get_or_init(|| check.client()).clone()))
    }

    /// Whether the check service can be asked, if there is one.
    pub(crate) async fn can_ask(&self) -> Result<(), authz::Failure> {
        match &self.check {
            Some(check) => check.reach().await,
            None => Ok(()),
        }
    }

    /// Whether there is somebody to ask.
    pub(crate) fn is_checked(&self) -> bool {
        self.check.is_some()
    }

    /// How much of a request's body it is to see; 0 for nothing.
    pub(crate) fn asked_about_bodies(&self) -> usize {
        self.check.as_ref().map_or(0, Check::body)
    }

    /// From now on connections end as soon as they can.
    pub(crate) fn drain(&self) {
        self.draining.send_replace(true);
    }

    /// Returns once they should.
    pub(crate) async fn draining(&self) {
        // It can't fail: `self` holds the sender.
        let _ = self
            .draining
            .subscribe()
            .wait_for(|draining| *draining)
            .await;
    }
}

thread_local! {
    /// A process has one check service, and each of its workers one way to it.
    static CHECK: OnceCell<authz::Client> = const { OnceCell::new() };
}
