//! The counters and the histogram of connect times as Prometheus metrics, read when they are scraped.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use peername_kernel::data_path::DataPath;
use peername_observe::encode::{counter, counters, gauge, gauges};
use peername_relay::connections_by_method;
use peername_server::workers::load::WorkerLoad;
use peername_sys::Transport;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::histogram::Histogram;

use crate::telemetry::counters::{Counters, DatagramSnapshot, DatagramTally, Refusal, Snapshot};
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
        encode_totals(&mut encoder, &snapshot)?;
        encode_udp(&mut encoder, &snapshot)?;
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
        encode_connect_time(&mut encoder, &self.counters.connect_seconds)
    }
}

#[derive(Clone, Debug, EncodeLabelSet)]
struct ConnectionLabels {
    listener: String,
    protocol: &'static str,
    outcome: &'static str,
}

#[derive(Clone, Debug, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

#[derive(Clone, Debug, EncodeLabelSet)]
struct DirectionLabel {
    direction: &'static str,
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
        refusals_by_reason(snapshot, Refusal::Header),
    )?;
    counters(
        encoder,
        "peername_denied",
        "Connections and UDP sessions that a rule refused or ended, by reason",
        refusals_by_reason(snapshot, Refusal::Denied),
    )
}

fn refusals_by_reason(
    snapshot: &Snapshot,
    refusal: Refusal,
) -> impl Iterator<Item = (ReasonLabel, u64)> {
    let mut reasons: BTreeMap<&'static str, u64> = BTreeMap::new();
    for (labels, count) in &snapshot.outcomes {
        if labels.refusal == Some(refusal) {
            *reasons.entry(labels.outcome).or_default() += count;
        }
    }
    reasons
        .into_iter()
        .map(|(reason, count)| (ReasonLabel { reason }, count))
}

fn encode_totals(
    encoder: &mut DescriptorEncoder<'_>,
    snapshot: &Snapshot,
) -> Result<(), fmt::Error> {
    let &Snapshot {
        accepted,
        active,
        to_upstream,
        to_downstream,
        // Only the last line of the log has them: peers that close early are no fault of a running proxy.
        undelivered: _,
        collisions,
        // Encoded by other functions.
        datagrams: _,
        outcomes: _,
    } = snapshot;
    counter(
        encoder,
        "peername_connections_accepted",
        "TCP connections accepted",
        accepted,
    )?;
    gauge(
        encoder,
        "peername_connections_active",
        "TCP connections that are open now",
        active,
    )?;
    counters(
        encoder,
        "peername_bytes",
        "Bytes relayed by connections and UDP sessions that have ended, by direction",
        directions(to_upstream, to_downstream),
    )?;
    counter(
        encoder,
        "peername_port_collisions",
        "Connections with a client port that was taken on this host",
        collisions,
    )
}

fn encode_udp(encoder: &mut DescriptorEncoder<'_>, snapshot: &Snapshot) -> Result<(), fmt::Error> {
    let &DatagramSnapshot {
        sessions,
        sessions_opened,
        ref totals,
    } = &snapshot.datagrams;
    let &DatagramTally {
        to_upstream,
        to_downstream,
        in_kernel,
        ref dropped,
        ref evicted,
        // Each is counted as sent on or as dropped.
        received: _,
        replies: _,
    } = totals;
    gauge(
        encoder,
        "peername_udp_sessions",
        "UDP sessions that are open now",
        sessions,
    )?;
    counter(
        encoder,
        "peername_udp_sessions_opened",
        "UDP sessions opened",
        sessions_opened,
    )?;
    counters(
        encoder,
        "peername_udp_datagrams",
        "Datagrams sent on, by direction, in user space and in the kernel",
        directions(to_upstream, to_downstream),
    )?;
    counter(
        encoder,
        "peername_udp_offloaded_datagrams",
        "Datagrams that the kernel data path sent on",
        in_kernel,
    )?;
    counters(
        encoder,
        "peername_udp_dropped",
        "Datagrams dropped, by reason",
        dropped
            .iter()
            .map(|(&reason, &count)| (ReasonLabel { reason }, count)),
    )?;
    counters(
        encoder,
        "peername_udp_evictions",
        "UDP sessions evicted for another one, by the limit that was reached",
        evicted
            .iter()
            .map(|(&reason, &count)| (ReasonLabel { reason }, count)),
    )
}

fn encode_connect_time(
    encoder: &mut DescriptorEncoder<'_>,
    histogram: &Histogram,
) -> Result<(), fmt::Error> {
    let metric = encoder.encode_descriptor(
        "peername_connect_seconds",
        "Time from the start of a connection to a backend until it was established",
        None,
        histogram.metric_type(),
    )?;
    histogram.encode(metric)
}

fn directions(to_upstream: u64, to_downstream: u64) -> [(DirectionLabel, u64); 2] {
    [
        ("to_upstream", to_upstream),
        ("to_downstream", to_downstream),
    ]
    .map(|(direction, count)| (DirectionLabel { direction }, count))
}
