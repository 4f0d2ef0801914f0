//! What is counted of checks.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

use super::verdict::{Failure, How, Verdict};

/// Of all workers together.
#[derive(Debug)]
pub(crate) struct Counters {
    outcomes: Family<Labels, Counter>,
    seconds: Histogram,
    suspended: Gauge,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Labels {
    outcome: &'static str,
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            outcomes: Family::default(),
            seconds: Histogram::new(exponential_buckets(0.000_25, 2.0, 13)),
            suspended: Gauge::default(),
        }
    }
}

impl Counters {
    pub(crate) fn register(&self, registry: &mut Registry) {
        registry.register(
            "peername_check",
            "Checks by how they ended",
            self.outcomes.clone(),
        );
        registry.register_with_unit(
            "peername_check",
            "What the check service took to answer, or not to",
            Unit::Seconds,
            self.seconds.clone(),
        );
        registry.register(
            "peername_check_suspended",
            "1 while the check service is given a pause because it failed too often",
            self.suspended.clone(),
        );
    }

    /// Each question once.
    pub(crate) fn count(&self, verdict: &Verdict) {
        let outcome = match (&verdict.how, verdict.decision.allows()) {
            (How::Asked, true) => "ok",
            (How::Asked, false) => "denied",
            (How::Cached, _) => "cache_hit",
            (How::Failed(Failure::Timeout(_)), _) => "timeout",
            (How::Failed(Failure::Suspended), _) => "suspended",
            (How::Failed(_), _) => "error",
            (How::FailedOpen(_), _) => "fail_open",
        };
        self.outcomes.get_or_create(&Labels { outcome }).inc();
    }

    /// The service was asked, and answered or not.
    pub(crate) fn took(&self, duration: Duration) {
        self.seconds.observe(duration.as_secs_f64());
    }

    pub(crate) fn suspended(&self, is_suspended: bool) {
        self.suspended.set(is_suspended.into());
    }
}
