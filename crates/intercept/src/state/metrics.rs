//! Counters of requests and connections, for `/metrics`.

use std::sync::atomic::Ordering::Relaxed;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::audit::AuditRecord;

/// The counters of this process.
#[derive(Debug, Default)]
pub struct Metrics {
    requests: Family<Label, Counter>,
    failed_connections: Family<Label, Counter>,
    refused: Family<Label, Counter>,
    upstream_requests: Family<Label, Counter>,
    retries: Counter,
    pub(crate) connections: Counter,
    pub(crate) active: Gauge,
}

/// A label: its name and value.
type Label = [(&'static str, &'static str); 1];

impl Metrics {
    /// Registers all counters.
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
            "Connections that ended before a request was complete, by reason",
            self.failed_connections.clone(),
        );
        registry.register(
            "peername_intercept_refused",
            "Requests and tunnels that the proxy itself answered or closed, by code",
            self.refused.clone(),
        );
        registry.register(
            "peername_intercept_upstream_requests",
            "Requests that an origin answered, by whether the connection to it was new or reused",
            self.upstream_requests.clone(),
        );
        registry.register(
            "peername_intercept_upstream_retries",
            "Requests that were sent to their origin twice",
            self.retries.clone(),
        );
    }

    /// Counts a finished request.
    pub(crate) fn count_request(&self, record: &AuditRecord) {
        self.requests
            .get_or_create(&[("decision", record.decision.label())])
            .inc();
        if let Some(code) = record.code {
            self.refused.get_or_create(&[("code", code)]).inc();
        }
        if let Some(reused) = record.reused {
            let connection = if reused { "reused" } else { "new" };
            self.upstream_requests
                .get_or_create(&[("connection", connection)])
                .inc();
        }
        if record.to_upstream.retried.load(Relaxed) {
            self.retries.inc();
        }
    }

    pub(crate) fn count_failed_connection(&self, reason: &'static str) {
        self.failed_connections
            .get_or_create(&[("reason", reason)])
            .inc();
    }
}
