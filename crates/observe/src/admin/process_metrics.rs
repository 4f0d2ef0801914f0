//! The metrics that every process has: its version, its reloads and upgrades, and its connection limit.

use std::fmt::{self, Debug};
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use super::history::{History, unix_seconds};

/// The number of connections that a process can have open.
pub trait LimitGauge: Debug + Send + Sync + 'static {
    /// The most that may be open at once, by the limit of descriptors.
    fn limit(&self) -> u64;

    /// Whether as many are open, so that further ones wait in the accept backlog.
    fn is_reached(&self) -> bool;
}

/// Collects them.
#[derive(Debug)]
pub(super) struct ProcessCollector {
    pub(super) history: History,
    pub(super) limit: Option<Arc<dyn LimitGauge>>,
}

impl Collector for ProcessCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let state = self.history.state();
        let version = env!("CARGO_PKG_VERSION");
        let mut build = encoder.encode_descriptor(
            "peername_build_info",
            "The version of peername, as a label",
            None,
            MetricType::Gauge,
        )?;
        ConstGauge::new(1).encode(build.encode_family(&Version { version })?)?;
        gauge(
            &mut encoder,
            "peername_reload_last_success_timestamp_seconds",
            "When the configuration in force was applied, in seconds since 1970",
            unix_seconds(state.applied_at),
        )?;
        let mut reloads = encoder.encode_descriptor(
            "peername_reloads",
            "Configuration reloads, by result",
            None,
            MetricType::Counter,
        )?;
        let counts = state.reloads;
        for (result, count) in [("applied", counts.applied), ("refused", counts.refused)] {
            ConstCounter::new(count).encode(reloads.encode_family(&ReloadResult { result })?)?;
        }
        let refused = encoder.encode_descriptor(
            "peername_upgrades_refused",
            "Upgrades that failed, after which this process went on",
            None,
            MetricType::Counter,
        )?;
        ConstCounter::new(state.upgrades_refused).encode(refused)?;
        let Some(limit) = &self.limit else {
            return Ok(());
        };
        gauge(
            &mut encoder,
            "peername_connections_limit",
            "TCP connections that may be open at once, by the limit of descriptors",
            limit.limit(),
        )?;
        gauge(
            &mut encoder,
            "peername_accept_paused",
            "1 while as many connections are open, so that further ones wait in the accept backlog",
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

fn gauge(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: u64) -> fmt::Result {
    let metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX)).encode(metric)
}
