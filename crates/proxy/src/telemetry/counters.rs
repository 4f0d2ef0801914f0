//! The counters: counted, read, encoded as metrics, and logged as totals at the end.
//!
//! A snapshot is cheap: an event loop waits at most while the few outcomes are copied.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;
use peername_observe::admin::history::ReloadCounts;
use peername_observe::encode::{counter, counters, gauge};
use peername_relay::Tally;
use peername_server::addr::LocalAddr;
use peername_server::header_error::HeaderError;
use peername_sys::Transport;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::histogram::Histogram;

use crate::outcome::{Failure, Fault, Outcome, SessionEnd};
use crate::telemetry::labels::by_direction;

mod datagrams;

use datagrams::DatagramCounters;
pub use datagrams::{DatagramSnapshot, DatagramTally};

/// The counters of one proxy since its start.
#[derive(Debug)]
pub struct Counters {
    accepted: AtomicU64,
    ended: AtomicU64,
    to_upstream: AtomicU64,
    to_downstream: AtomicU64,
    undelivered: AtomicU64,
    collisions: AtomicU64,
    datagrams: DatagramCounters,
    /// Ends by outcome. Locked once per connection, at its end.
    outcomes: Mutex<BTreeMap<OutcomeLabels, u64>>,
    /// Durations from the start of connect(2) to an established connection.
    connect_seconds: Histogram,
}

/// The labels of the counter of ended connections and sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OutcomeLabels {
    /// The address that the listening socket is bound to.
    pub listener: SocketAddr,
    /// TCP connections or UDP sessions.
    pub transport: Transport,
    /// [`Outcome::label`].
    pub outcome: &'static str,
    /// The kind of refusal; `None` for other outcomes.
    pub refusal: Option<Refusal>,
}

/// The kinds of refusals that the metrics distinguish.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Refusal {
    /// No valid header arrived in time.
    Header,
    /// A rule of the operator's refused or ended the connection.
    Denied,
}

/// The values of the counters at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Connections accepted from the kernel.
    pub accepted: u64,
    /// Connections open now.
    pub active: u64,
    /// Bytes that backends accepted, of connections and sessions that have ended.
    pub to_upstream: u64,
    /// Bytes that clients accepted, likewise.
    pub to_downstream: u64,
    /// Bytes received for a peer that had already closed, likewise.
    pub undelivered: u64,
    /// Connections with a client port that was taken.
    pub collisions: u64,
    /// The UDP counters.
    pub datagrams: DatagramSnapshot,
    /// Ended connections and sessions.
    pub outcomes: BTreeMap<OutcomeLabels, u64>,
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            accepted: AtomicU64::default(),
            ended: AtomicU64::default(),
            to_upstream: AtomicU64::default(),
            to_downstream: AtomicU64::default(),
            undelivered: AtomicU64::default(),
            collisions: AtomicU64::default(),
            datagrams: DatagramCounters::default(),
            outcomes: Mutex::default(),
            connect_seconds: Histogram::new(CONNECT_SECONDS),
        }
    }
}

impl Counters {
    /// Counts an accepted connection.
    pub fn count_accepted(&self) {
        self.accepted.fetch_add(1, Relaxed);
    }

    /// Counts a client port that was taken.
    pub fn count_collision(&self) {
        self.collisions.fetch_add(1, Relaxed);
    }

    /// Counts the end of a connection.
    pub fn count_ended(&self, listener: LocalAddr, outcome: &Outcome, tally: &Tally) {
        self.ended.fetch_add(1, Relaxed);
        self.add_outcome(listener, Transport::Tcp, outcome, tally);
    }

    /// Counts a new UDP session; returns its number.
    pub fn count_session_opened(&self) -> u64 {
        self.datagrams.opened.fetch_add(1, Relaxed);
        self.datagrams.started.fetch_add(1, Relaxed)
    }

    /// Counts a UDP session that another process has opened; returns its number in this process.
    pub fn count_session_taken_over(&self) -> u64 {
        self.datagrams.started.fetch_add(1, Relaxed)
    }

    /// Counts the end of a UDP session.
    pub fn count_session_ended(&self, listener: LocalAddr, outcome: &Outcome, tally: &Tally) {
        self.datagrams.ended.fetch_add(1, Relaxed);
        self.add_outcome(listener, Transport::Udp, outcome, tally);
    }

    /// Counts a UDP session that goes on in another process.
    pub fn count_session_handed_over(&self) {
        self.datagrams.ended.fetch_add(1, Relaxed);
    }

    /// Adds the tally of a worker, and resets it.
    pub(crate) fn flush_tally(&self, tally: &mut DatagramTally) {
        self.datagrams.flush_tally(tally);
    }

    /// Counts an established connection to a backend, and how long it took.
    pub(crate) fn count_connected(&self, time: Duration) {
        self.connect_seconds.observe(time.as_secs_f64());
    }

    fn add_outcome(
        &self,
        LocalAddr(listener): LocalAddr,
        transport: Transport,
        outcome: &Outcome,
        tally: &Tally,
    ) {
        self.to_upstream.fetch_add(tally.to_upstream, Relaxed);
        self.to_downstream.fetch_add(tally.to_downstream, Relaxed);
        self.undelivered.fetch_add(tally.undelivered, Relaxed);
        let mut outcomes = self.outcomes.lock();
        let labels = OutcomeLabels {
            listener,
            transport,
            outcome: outcome.label(),
            refusal: Refusal::from_outcome(outcome),
        };
        *outcomes.entry(labels).or_default() += 1;
    }

    /// Reads all counters.
    pub fn snapshot(&self) -> Snapshot {
        let (ended, accepted) = (self.ended.load(Relaxed), self.accepted.load(Relaxed));
        Snapshot {
            accepted,
            active: accepted.saturating_sub(ended),
            to_upstream: self.to_upstream.load(Relaxed),
            to_downstream: self.to_downstream.load(Relaxed),
            undelivered: self.undelivered.load(Relaxed),
            collisions: self.collisions.load(Relaxed),
            datagrams: self.datagrams.snapshot(),
            outcomes: self.outcomes.lock().clone(),
        }
    }

    /// Encodes the histograms as metrics.
    pub(super) fn encode_histograms(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let metric = encoder.encode_descriptor(
            "peername_connect_seconds",
            "Time from the start of a connection to a backend until it was established",
            None,
            self.connect_seconds.metric_type(),
        )?;
        self.connect_seconds.encode(metric)
    }
}

impl Snapshot {
    /// Encodes the counters of connections as metrics, except the outcomes.
    pub(super) fn encode_totals(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let &Self {
            accepted,
            active,
            to_upstream,
            to_downstream,
            // Only the last line of the log has them: peers that close early are no fault of a running proxy.
            undelivered: _,
            collisions,
            // Encoded by other methods.
            datagrams: _,
            outcomes: _,
        } = self;
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
            by_direction(to_upstream, to_downstream),
        )?;
        counter(
            encoder,
            "peername_port_collisions",
            "Connections with a client port that was taken on this host",
            collisions,
        )
    }

    /// Sums the ended connections and sessions by [`Outcome::label`] alone.
    pub fn by_outcome(&self) -> BTreeMap<&'static str, u64> {
        let mut sums = BTreeMap::new();
        for (labels, count) in &self.outcomes {
            *sums.entry(labels.outcome).or_default() += count;
        }
        sums
    }
}

impl Refusal {
    fn from_outcome(outcome: &Outcome) -> Option<Self> {
        let failure = match outcome {
            Outcome::Failed(failure) => failure,
            Outcome::AccessRevoked | Outcome::SessionEnded(SessionEnd::AccessRevoked) => {
                return Some(Self::Denied);
            }
            _ => return None,
        };
        match failure {
            Failure::Header(HeaderError::TooManyPending) => Some(Self::Denied),
            Failure::Header(_) => Some(Self::Header),
            _ => (failure.fault() == Fault::Policy).then_some(Self::Denied),
        }
    }
}

/// Logs the totals since the start, as the last line of the log.
pub fn log_totals(totals: &Snapshot, reloads: ReloadCounts) {
    let outcomes = totals.by_outcome();
    // Without `..`: a new counter is named here, or it is said why not. What is open now is no total.
    let Snapshot {
        accepted,
        active: _,
        to_upstream,
        to_downstream,
        undelivered,
        collisions,
        datagrams,
        outcomes: _,
    } = totals;
    let DatagramSnapshot {
        sessions: _,
        sessions_opened,
        totals: udp,
    } = datagrams;
    let DatagramTally {
        received,
        to_upstream: datagrams_to_upstream,
        replies,
        to_downstream: datagrams_to_downstream,
        in_kernel,
        dropped,
        // Each is an ended session, which `outcomes` has.
        evicted: _,
    } = udp;
    tracing::info!(
        connections = accepted,
        bytes_to_upstream = to_upstream,
        bytes_to_downstream = to_downstream,
        bytes_undelivered = undelivered,
        port_collisions = collisions,
        outcomes = join(&outcomes),
        reloads = reloads.applied,
        reloads_refused = reloads.refused,
        udp_sessions = sessions_opened,
        datagrams_received = received,
        datagrams_to_upstream = datagrams_to_upstream,
        datagrams_replied = replies,
        datagrams_to_downstream = datagrams_to_downstream,
        datagrams_in_kernel = in_kernel,
        datagrams_dropped = join(dropped),
        "stopped"
    );
}

/// `NAME=COUNT`, separated by spaces.
fn join(counts: &BTreeMap<&str, u64>) -> String {
    let texts: Vec<_> = counts
        .iter()
        .map(|(name, count)| format!("{name}={count}"))
        .collect();
    texts.join(" ")
}

/// Bounds of the histogram in seconds, from loopback to the retries of a lost SYN, which come after 1 s and 3 s.
const CONNECT_SECONDS: [f64; 12] = [
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.25, 1.0, 2.5, 5.0,
];
