//! What happened to the process as a whole: its reloads and upgrades, for `/status`, the page and the metrics.

use std::fmt::{self, Debug};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use serde::{Deserialize, Serialize};

/// The reloads and upgrades of a process. Clones share it.
#[derive(Clone, Debug)]
pub struct History(Arc<Mutex<State>>);

#[derive(Clone, Debug)]
struct State {
    reloads: ReloadCounts,
    last_reload: Option<Attempt>,
    /// When the configuration in force was read.
    applied_at: SystemTime,
    upgrades_refused: u64,
    last_upgrade: Option<Attempt>,
}

/// How many reloads there were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReloadCounts {
    /// That took effect.
    pub applied: u64,
    /// That were refused because of an error, and changed nothing.
    pub refused: u64,
}

/// A reload, or an upgrade.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Attempt {
    /// In seconds since 1970.
    pub at: u64,
    /// Why it was refused; `None` if it took effect.
    pub refused: Option<String>,
}

/// The number of connections that a process can have open.
pub trait ConnectionLimit: Debug + Send + Sync + 'static {
    /// The most that may be open at once, by the limit of descriptors.
    fn limit(&self) -> u64;

    /// Whether as many are open, so that further ones wait in the accept backlog.
    fn is_reached(&self) -> bool;
}

impl Default for History {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(State {
            reloads: ReloadCounts::default(),
            last_reload: None,
            applied_at: SystemTime::now(),
            upgrades_refused: 0,
            last_upgrade: None,
        })))
    }
}

impl History {
    /// Adds a reload; an error is why it was refused.
    pub fn add_reload(&self, result: Result<(), String>) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &result {
            Ok(()) => {
                state.reloads.applied += 1;
                state.applied_at = SystemTime::now();
            }
            Err(_) => state.reloads.refused += 1,
        }
        state.last_reload = Some(Attempt::now(result.err()));
    }

    /// Adds an upgrade that was refused, and why.
    pub fn add_refused_upgrade(&self, reason: String) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.upgrades_refused += 1;
        state.last_upgrade = Some(Attempt::now(Some(reason)));
    }

    /// The reloads since the start.
    pub fn reloads(&self) -> ReloadCounts {
        self.state().reloads
    }

    /// The last reload; `None` before the first one.
    pub fn last_reload(&self) -> Option<Attempt> {
        self.state().last_reload
    }

    /// The last upgrade, if there was one. It was refused: otherwise another process is asked.
    pub fn last_upgrade(&self) -> Option<Attempt> {
        self.state().last_upgrade
    }

    fn state(&self) -> State {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl Attempt {
    fn now(refused: Option<String>) -> Self {
        let at = unix_seconds(SystemTime::now());
        Self { at, refused }
    }
}

/// The metrics of any process.
#[derive(Debug)]
pub(super) struct ProcessCollector {
    pub(super) history: History,
    pub(super) limit: Option<Arc<dyn ConnectionLimit>>,
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

fn unix_seconds(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}
