//! The Prometheus metrics, read when they are scraped. The counters encode themselves; this module encodes the rest.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use peername_kernel::data_path::DataPath;
use peername_observe::encode::{counters, gauge, gauges};
use peername_relay::connections_by_method;
use peername_server::workers::load::WorkerLoad;
use peername_sys::Transport;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet};

use crate::telemetry::counters::{Counters, Refusal, Snapshot};
use crate::telemetry::labels::by_reason;
use crate::telemetry::outages::{self, FailedBackend};
use crate::udp::OpenSessions;

/// Collects the counters of `proxy` or `forward`.
#[derive(Debug)]
pub struct ProxyCollector {
    /// The counters.
    pub counters: Arc<Counters>,
    /// The load of each worker.
    pub workers: Vec<Arc<WorkerLoad>>,
    /// The open sessions.
    pub sessions: OpenSessions,
    /// The kernel data path, if there is one.
    pub kernel: Option<Arc<DataPath>>,
}

impl Collector for ProxyCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let snapshot = self.counters.snapshot();
        encode_outcomes(&mut encoder, &snapshot)?;
        encode_refusals(&mut encoder, &snapshot)?;
        snapshot.encode_totals(&mut encoder)?;
        snapshot.datagrams.encode(&mut encoder)?;
        encode_methods(&mut encoder)?;
        encode_outages(&mut encoder)?;
        self.encode_workers(&mut encoder)?;
        let offloaded = self.kernel.as_ref().map_or(0, |kernel| kernel.flow_count());
        gauge(
            &mut encoder,
            "peername_udp_offloaded_sessions",
            "UDP sessions that the kernel data path carries now",
            offloaded as u64,
        )?;
        self.counters.encode_histograms(&mut encoder)
    }
}

#[derive(Clone, Debug, EncodeLabelSet)]
struct ConnectionLabels {
    listener: String,
    protocol: &'static str,
    outcome: &'static str,
}

#[derive(Clone, Debug, EncodeLabelSet)]
struct WorkerLabel {
    worker: usize,
}

#[derive(Clone, Debug, EncodeLabelSet)]
struct MethodLabel {
    method: &'static str,
}

#[derive(Clone, Debug, EncodeLabelSet)]
struct BackendLabel {
    backend: String,
}

impl ProxyCollector {
    fn encode_workers(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        gauges(
            encoder,
            "peername_worker_connections",
            "TCP connections that are open now, by worker",
            by_worker(self.workers.iter().map(|worker| worker.connections())),
        )?;
        gauges(
            encoder,
            "peername_worker_sessions",
            "UDP sessions that are open now, by worker",
            by_worker(self.sessions.by_worker()),
        )?;
        counters(
            encoder,
            "peername_worker_handoffs",
            "TCP connections that a worker accepted and handed off to a less loaded worker, by accepting worker",
            by_worker(self.workers.iter().map(|worker| worker.handed_off())),
        )
    }
}

/// Labels each count with the index of its worker.
fn by_worker(counts: impl IntoIterator<Item = u64>) -> impl Iterator<Item = (WorkerLabel, u64)> {
    counts
        .into_iter()
        .enumerate()
        .map(|(worker, count)| (WorkerLabel { worker }, count))
}

fn encode_methods(encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
    let connections = connections_by_method();
    gauges(
        encoder,
        "peername_relay_method",
        "TCP connections that are relayed now, by relay method",
        connections.map(|(method, count)| {
            let method = method.name();
            (MethodLabel { method }, count)
        }),
    )
}

fn encode_outages(encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
    let backends = outages::failed_backends();
    let by_backend = |value: fn(&FailedBackend) -> u64| {
        backends.iter().map(move |failed| {
            let backend = failed.backend.to_string();
            (BackendLabel { backend }, value(failed))
        })
    };
    gauges(
        encoder,
        "peername_backend_up",
        "1 if the backend accepts connections; only backends that have failed are listed",
        by_backend(|failed| u64::from(failed.down_for.is_none())),
    )?;
    gauges(
        encoder,
        "peername_backend_down_seconds",
        "For how long a backend has accepted no client; 0 if it accepts them",
        by_backend(|failed| failed.down_for.unwrap_or_default().as_secs()),
    )?;
    gauges(
        encoder,
        "peername_backend_last_failure_seconds",
        "The time since a backend last did not accept a client",
        by_backend(|failed| failed.last_failure.as_secs()),
    )
}

fn encode_outcomes(
    encoder: &mut DescriptorEncoder<'_>,
    snapshot: &Snapshot,
) -> Result<(), fmt::Error> {
    let mut ended: BTreeMap<(SocketAddr, Transport, &'static str), u64> = BTreeMap::new();
    for (labels, count) in &snapshot.outcomes {
        let key = (labels.listener, labels.transport, labels.outcome);
        *ended.entry(key).or_default() += count;
    }
    let ended = ended
        .into_iter()
        .map(|((listener, transport, outcome), count)| {
            let labels = ConnectionLabels {
                listener: listener.to_string(),
                protocol: transport.name(),
                outcome,
            };
            (labels, count)
        });
    counters(
        encoder,
        "peername_connections",
        "Connections and UDP sessions that have ended, by how they ended",
        ended,
    )
}

fn encode_refusals(
    encoder: &mut DescriptorEncoder<'_>,
    snapshot: &Snapshot,
) -> Result<(), fmt::Error> {
    counters(
        encoder,
        "peername_header_errors",
        "Connections without a valid header in time, by reason",
        by_reason(&refusals_by_reason(snapshot, Refusal::Header)),
    )?;
    counters(
        encoder,
        "peername_denied",
        "Connections and UDP sessions that a rule refused or ended, by reason",
        by_reason(&refusals_by_reason(snapshot, Refusal::Denied)),
    )
}

fn refusals_by_reason(snapshot: &Snapshot, refusal: Refusal) -> BTreeMap<&'static str, u64> {
    let mut reasons = BTreeMap::new();
    for (labels, count) in &snapshot.outcomes {
        if labels.refusal == Some(refusal) {
            *reasons.entry(labels.outcome).or_default() += count;
        }
    }
    reasons
}
