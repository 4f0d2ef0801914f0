//! The metrics that every process has: its version, its readiness, its reloads and upgrades, and its connection limit.

use std::fmt::{self, Debug};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet};

use super::history::{History, unix_seconds};
use crate::encode::{counter, counters, gauge, gauges};

/// The number of connections that a process can have open.
pub trait LimitGauge: Debug + Send + Sync + 'static {
    /// The most that may be open at once, by the limit of descriptors.
    fn limit(&self) -> u64;

    /// Whether that many are open, so that further ones wait in the accept backlog.
    fn is_reached(&self) -> bool;
}

/// Collects these metrics at each scrape.
#[derive(Debug)]
pub(super) struct ProcessCollector {
    pub(super) history: History,
    /// Set before each scrape: a collector can't wait for the check.
    pub(super) is_ready: Arc<AtomicBool>,
    pub(super) limit: Option<Arc<dyn LimitGauge>>,
}

impl Collector for ProcessCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let state = self.history.state();
        let version = env!("CARGO_PKG_VERSION");
        gauges(
            &mut encoder,
            "peername_build_info",
            "The version of peername, as a label",
            [(Version { version }, 1)],
        )?;
        gauge(
            &mut encoder,
            "peername_ready",
            "1 while clients should be sent here, as /readyz reports it",
            u64::from(self.is_ready.load(Relaxed)),
        )?;
        gauge(
            &mut encoder,
            "peername_reload_last_success_timestamp_seconds",
            "When the configuration in force was applied, in seconds since 1970",
            unix_seconds(state.applied_at),
        )?;
        let counts = state.reloads;
        let results = [("applied", counts.applied), ("refused", counts.refused)];
        counters(
            &mut encoder,
            "peername_reloads",
            "Configuration reloads, by result",
            results.map(|(result, count)| (ReloadResult { result }, count)),
        )?;
        counter(
            &mut encoder,
            "peername_upgrades_refused",
            "Upgrades that failed, after which this process went on",
            state.upgrades_refused,
        )?;
        // `exec` and `agent` accept no connections themselves; their supervisors read the lists.
        let Some(limit) = &self.limit else {
            return Ok(());
        };
        gauge(
            &mut encoder,
            "peername_lists_stale",
            "1 while a list of clients can't be read and the previous one stays in force",
            u64::from(state.stale_lists.is_some()),
        )?;
        gauge(
            &mut encoder,
            "peername_connections_limit",
            "TCP connections that may be open at once, by the limit of descriptors",
            limit.limit(),
        )?;
        gauge(
            &mut encoder,
            "peername_accept_paused",
            "1 while peername_connections_limit connections are open, so that further ones wait in the accept backlog",
            u64::from(limit.is_reached()),
        )
    }
}

#[derive(Clone, Debug, EncodeLabelSet)]
struct Version {
    version: &'static str,
}

#[derive(Clone, Debug, EncodeLabelSet)]
struct ReloadResult {
    result: &'static str,
}
