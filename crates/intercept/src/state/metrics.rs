//! What is counted, for `/metrics`.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::audit::Decided;
use crate::state::Site;

/// The counters of this process.
#[derive(Debug, Default)]
pub struct Metrics {
    requests: Family<Decision, Counter>,
    unopened: Family<Reason, Counter>,
    pub(crate) connections: Counter,
    pub(crate) active: Gauge,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Decision {
    decision: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reason {
    reason: &'static str,
}

impl Metrics {
    /// Adds them all.
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

    pub(crate) fn request(&self, decided: Decided) {
        let decision = decided.label();
        self.requests.get_or_create(&Decision { decision }).inc();
    }

    pub(crate) fn unopened(&self, reason: &'static str) {
        self.unopened.get_or_create(&Reason { reason }).inc();
    }
}

/// What the mint counts by itself.
#[derive(Debug)]
pub(crate) struct Certificates(pub(crate) Arc<Site>);

impl Collector for Certificates {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let mint = &self.0.mint;
        let mut counter = |name, help, value| {
            let counter = ConstCounter::new(value);
            let encoder = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            counter.encode(encoder)
        };
        counter(
            "peername_certificates_issued",
            "Certificates made for hosts",
            mint.issued(),
        )?;
        counter(
            "peername_certificate_cache_hits",
            "Handshakes answered with a certificate that was there",
            mint.cache_hits(),
        )
    }
}
