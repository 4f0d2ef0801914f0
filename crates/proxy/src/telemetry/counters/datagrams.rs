//! The UDP counters, and their metrics: every received datagram is counted either as sent or as dropped, with the reason.

use std::collections::BTreeMap;
use std::fmt;
use std::mem;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;
use peername_observe::encode::{counter, counters, gauge};
use prometheus_client::encoding::DescriptorEncoder;

use crate::telemetry::labels::{by_direction, by_reason};

/// The counters of datagrams: those of one worker since it last flushed them, or the sums of all workers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DatagramTally {
    /// Datagrams from balancers.
    pub received: u64,
    /// Datagrams sent to backends.
    pub to_upstream: u64,
    /// Datagrams from backends.
    pub replies: u64,
    /// Datagrams sent to balancers.
    pub to_downstream: u64,
    /// The datagrams of `to_upstream` and `to_downstream` that the kernel carried (offload).
    pub in_kernel: u64,
    /// Dropped datagrams of either direction, by reason. `receive_buffer_full` counts those that the kernel dropped at a socket
    /// before they were received here (SO_RXQ_OVFL), including those with a wrong checksum.
    pub dropped: BTreeMap<&'static str, u64>,
    /// Evicted sessions, by the limit that was reached: `balancer_limit`, `session_limit`, `descriptors`, `ports` or `memory`.
    pub evicted: BTreeMap<&'static str, u64>,
}

#[derive(Debug, Default)]
pub(super) struct DatagramCounters {
    /// Sessions that were opened or taken over.
    pub(super) started: AtomicU64,
    pub(super) opened: AtomicU64,
    pub(super) ended: AtomicU64,
    /// Locked once for each batch of datagrams.
    totals: Mutex<DatagramTally>,
}

/// The UDP counters at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DatagramSnapshot {
    /// Sessions open now.
    pub sessions: u64,
    /// Sessions opened since the start.
    pub sessions_opened: u64,
    /// The datagrams and evictions since the start.
    pub totals: DatagramTally,
}

impl DatagramTally {
    pub(crate) fn count_evicted(&mut self, reason: &'static str) {
        *self.evicted.entry(reason).or_default() += 1;
    }

    pub(crate) fn count_dropped(&mut self, reason: &'static str, datagrams: u64) {
        *self.dropped.entry(reason).or_default() += datagrams;
    }
}

impl DatagramCounters {
    /// Adds the tally, and resets it.
    pub(super) fn flush_tally(&self, tally: &mut DatagramTally) {
        // With nothing to add, no lock is taken, so this worker does not wait for another.
        if *tally == DatagramTally::default() {
            return;
        }
        let DatagramTally {
            received,
            to_upstream,
            replies,
            to_downstream,
            in_kernel,
            dropped,
            evicted,
        } = mem::take(tally);
        let mut totals = self.totals.lock();
        totals.received += received;
        totals.to_upstream += to_upstream;
        totals.replies += replies;
        totals.to_downstream += to_downstream;
        totals.in_kernel += in_kernel;
        for (reason, count) in dropped {
            *totals.dropped.entry(reason).or_default() += count;
        }
        for (reason, count) in evicted {
            *totals.evicted.entry(reason).or_default() += count;
        }
    }

    pub(super) fn snapshot(&self) -> DatagramSnapshot {
        let (ended, started) = (self.ended.load(Relaxed), self.started.load(Relaxed));
        DatagramSnapshot {
            sessions: started.saturating_sub(ended),
            sessions_opened: self.opened.load(Relaxed),
            totals: self.totals.lock().clone(),
        }
    }
}

impl DatagramSnapshot {
    /// Encodes the counters as metrics.
    pub(crate) fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let &Self {
            sessions,
            sessions_opened,
            ref totals,
        } = self;
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
            by_direction(to_upstream, to_downstream),
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
            by_reason(dropped),
        )?;
        counters(
            encoder,
            "peername_udp_evictions",
            "UDP sessions evicted for another one, by the limit that was reached",
            by_reason(evicted),
        )
    }
}
