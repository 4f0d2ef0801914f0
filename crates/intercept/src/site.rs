//! What all connections have in common.

use std::cell::OnceCell;
use std::sync::Arc;
use std::time::Duration;

use prometheus_client::registry::Registry;
use tokio::sync::watch;

use crate::access::Access;
use crate::check::{self, Check};
use crate::leaf::Mint;
use crate::metrics::{Certificates, Metrics};
use crate::passthrough::Passthrough;
use crate::pinned::Pinned;
use crate::share::Shares;
use crate::upstream::Upstream;
use peername_proxy::trust::TrustList;

/// How clients are dealt with.
#[derive(Debug)]
pub struct Rules {
    /// Who may use the proxy.
    pub access: Access,
    /// Hosts whose TLS is not opened (`--passthrough`).
    pub passthrough: Passthrough,
    /// Clients that have refused us for a host (`--auto-passthrough`).
    pub pinned: Option<Pinned>,
    /// Who says on whose behalf it connects (`--accept-proxy`).
    pub accept_proxy: Option<TrustList>,
    /// From accept to a PROXY header, and again to a complete ClientHello or the head of a request; and from the first
    /// octet of any head to its last.
    pub opening_timeout: Duration,
    /// Between two requests, and for bodies of which nothing moves.
    pub idle_timeout: Duration,
    /// For tunnels and streams on which nothing moves, and which may be silent for long.
    pub tunnel_timeout: Duration,
}

/// The proxy, but for its connections.
#[derive(Debug)]
pub struct Site {
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
        rules: Rules,
        mint: Mint,
        upstream: Upstream,
        check: Option<Check>,
        connections: usize,
    ) -> Self {
        let (draining, _) = watch::channel(false);
        Self {
            rules,
            mint,
            upstream,
            metrics: Arc::default(),
            shares: Shares::new(connections),
            check,
            draining,
        }
    }

    /// Adds all that is counted.
    pub(crate) fn register(self: &Arc<Self>, registry: &mut Registry) {
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
    pub(crate) fn check(&self) -> Option<check::Client> {
        let check = self.check.as_ref()?;
        Some(CHECK.with(|client| client.get_or_init(|| check.client()).clone()))
    }

    /// Whether the check service can be asked, if there is one.
    pub(crate) async fn can_ask(&self) -> Result<(), check::Failure> {
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
    static CHECK: OnceCell<check::Client> = const { OnceCell::new() };
}
