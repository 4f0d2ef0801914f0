//! Metrics of checks.

use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

use super::verdict::{AuthzError, DecidedBy, Verdict};

/// The metrics of all workers together. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct CheckMetrics {
    outcomes: Family<[(&'static str, &'static str); 1], Counter>,
    seconds: Histogram,
    suspended: Gauge,
}

impl Default for CheckMetrics {
    fn default() -> Self {
        Self {
            outcomes: Family::default(),
            // From 250 µs to 1 s.
            seconds: Histogram::new(exponential_buckets(0.000_25, 2.0, 13)),
            suspended: Gauge::default(),
        }
    }
}

impl CheckMetrics {
    pub(crate) fn register(&self, registry: &mut Registry) {
        registry.register(
            "peername_check",
            "Checks by how they ended",
            self.outcomes.clone(),
        );
        registry.register_with_unit(
            "peername_check",
            "Duration of requests to check services, failed ones included",
            Unit::Seconds,
            self.seconds.clone(),
        );
        registry.register(
            "peername_check_suspended",
            "Check services with an open circuit breaker",
            self.suspended.clone(),
        );
    }

    /// Counts a check.
    pub(crate) fn count(&self, verdict: &Verdict) {
        let outcome = match (&verdict.decided_by, verdict.decision.allows()) {
            (DecidedBy::Service, true) => "ok",
            (DecidedBy::Service, false) => "denied",
            (DecidedBy::Cache, _) => "cache_hit",
            (DecidedBy::Failure(AuthzError::Timeout(_)), _) => "timeout",
            (DecidedBy::Failure(AuthzError::Busy(_)), _) => "busy",
            (DecidedBy::Failure(AuthzError::Suspended), _) => "suspended",
            (DecidedBy::Failure(_), _) => "error",
            (DecidedBy::FailOpen(_), _) => "fail_open",
        };
        self.outcomes.get_or_create(&[("outcome", outcome)]).inc();
    }

    /// Observes the duration of a request to a service, also of one that failed.
    pub(crate) fn observe_duration(&self, duration: Duration) {
        self.seconds.observe(duration.as_secs_f64());
    }

    pub(crate) fn set_suspended(&self, services: usize) {
        self.suspended
            .set(i64::try_from(services).unwrap_or(i64::MAX));
    }
}
