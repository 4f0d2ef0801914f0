//! Telemetry of `proxy` and `forward`: the admin endpoint.

use std::collections::BTreeMap;
use std::sync::Arc;

use peername_kernel::data_path::DataPath;
use peername_observe::admin::events::LastRefusal;
use peername_observe::admin::{AdminServer, AllowedHosts, Health, Resources};
use peername_proxy::reply_path::monitor::ReplyPathMonitor;
use peername_proxy::telemetry::codes::advise;
use peername_proxy::telemetry::counters::Counters;
use peername_proxy::telemetry::last_refusals;
use peername_proxy::telemetry::metrics::ProxyCollector;
use peername_proxy::udp::OpenSessions;
use peername_server::workers::Workers;
use peername_server::workers::liveness::Liveness;
use peername_server::workers::phases::Phases;
use prometheus_client::registry::Registry;
use tokio::sync::watch;

/// What the admin endpoint of a running `proxy` or `forward` shows.
pub(crate) struct Telemetry<'a> {
    pub(crate) counters: &'a Arc<Counters>,
    pub(crate) sessions: &'a OpenSessions,
    /// The offload of UDP sessions, if there is one.
    pub(crate) kernel: Option<&'a Arc<DataPath>>,
    pub(crate) reply_path: Option<watch::Receiver<Arc<ReplyPathMonitor>>>,
    pub(crate) hosts: AllowedHosts,
}

impl Telemetry<'_> {
    pub(crate) fn admin_server(
        self,
        workers: &Workers,
        resources: Resources,
    ) -> AdminServer<ProxyHealth> {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(ProxyCollector {
            counters: Arc::clone(self.counters),
            workers: workers.loads(),
            sessions: self.sessions.clone(),
            kernel: self.kernel.cloned(),
        }));
        let health = ProxyHealth {
            liveness: workers.liveness(),
            phases: workers.phases(),
            reply_path: self.reply_path,
        };
        let resources = Resources {
            advise: Some(advise),
            sessions: Some(Box::new(self.sessions.clone())),
            ..resources
        };
        AdminServer::new(registry, health, self.hosts, resources)
    }
}

/// The health of `proxy` and `forward`.
pub(crate) struct ProxyHealth {
    liveness: Liveness,
    phases: Phases,
    /// `None` for `forward`, which connects from its own address.
    reply_path: Option<watch::Receiver<Arc<ReplyPathMonitor>>>,
}

impl Health for ProxyHealth {
    async fn check_liveness(&self) {
        self.liveness.check().await;
    }

    async fn check_readiness(&self) -> Result<(), String> {
        if self.phases.is_drain_announced() {
            return Err("draining".to_owned());
        }
        let is_reply_path_broken = self
            .reply_path
            .as_ref()
            .is_some_and(|monitor| !monitor.borrow().is_all_sound());
        if is_reply_path_broken {
            return Err(
                "replies to clients do not come back to this host; the log names the rule that is missing".to_owned(),
            );
        }
        Ok(())
    }

    async fn warning(&self) -> Option<String> {
        let reply_path = Arc::clone(&self.reply_path.as_ref()?.borrow());
        let client = reply_path.translated_client()?;
        Some(format!(
            "but clients like {client} are refused: NAT rules of this host replace their address; see `peername doctor` \
             with the options of the proxy"
        ))
    }

    fn last_refusals(&self) -> BTreeMap<String, LastRefusal> {
        last_refusals()
    }

    fn is_draining(&self) -> bool {
        self.phases.is_draining()
    }
}
