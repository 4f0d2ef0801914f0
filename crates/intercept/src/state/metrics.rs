//! Counters of requests and connections, for `/metrics`.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::audit::FinalDecision;

/// The counters of this process.
#[derive(Debug, Default)]
pub struct Metrics {
    requests: Family<DecisionLabel, Counter>,
    unopened: Family<ReasonLabel, Counter>,
    pub(crate) connections: Counter,
    pub(crate) active: Gauge,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DecisionLabel {
    decision: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

impl Metrics {
    /// Registers them all.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "peername_intercept_requests",
            "Requests and tunnels, by what was decided",
            self.requests.clone(),
        );
        registry.register(
            "peername_intercept_connections",
            "Connections accepted from clients",
            self.connections.clone(),
        );
        registry.register(
            "peername_intercept_connections_active",
            "Connections of clients that are open now",
            self.active.clone(),
        );
        registry.register(
            "peername_intercept_connections_failed",
            "Connections that ended before there was a request, by reason",
            self.unopened.clone(),
        );
    }

    pub(crate) fn count_request(&self, decision: FinalDecision) {
        let decision = decision.label();
        self.requests
            .get_or_create(&DecisionLabel { decision })
            .inc();
    }

    pub(crate) fn count_unopened(&self, reason: &'static str) {
        self.unopened.get_or_create(&ReasonLabel { reason }).inc();
    }
}
