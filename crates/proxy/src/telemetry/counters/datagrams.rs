//! The UDP counters: every received datagram is counted either as sent or as dropped, with the reason.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;

#[derive(Debug, Default)]
pub(super) struct DatagramCounters {
    pub(super) started: AtomicU64,
    pub(super) ended: AtomicU64,
    received: AtomicU64,
    to_upstream: AtomicU64,
    replies: AtomicU64,
    to_downstream: AtomicU64,
    in_kernel: AtomicU64,
    dropped: Mutex<BTreeMap<&'static str, u64>>,
    evicted: Mutex<BTreeMap<&'static str, u64>>,
}

/// The counts of one worker since it last flushed them.
#[derive(Debug, Default)]
pub(crate) struct DatagramTally {
    pub(crate) received: u64,
    pub(crate) to_upstream: u64,
    pub(crate) replies: u64,
    pub(crate) to_downstream: u64,
    pub(crate) in_kernel: u64,
    dropped: BTreeMap<&'static str, u64>,
    evicted: BTreeMap<&'static str, u64>,
}

/// The UDP counters at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DatagramSnapshot {
    /// Sessions open now.
    pub sessions: u64,
    /// Sessions since the start.
    pub sessions_opened: u64,
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
    /// Dropped datagrams of either direction, by reason. `receive_buffer_full` are those that the kernel dropped at a
    /// socket before they were received here (SO_RXQ_OVFL), also for a wrong checksum.
    pub dropped: BTreeMap<&'static str, u64>,
    /// Evicted sessions, by the limit that was reached: `balancer_limit`, `session_limit`, `descriptors` or `ports`.
    pub evicted: BTreeMap<&'static str, u64>,
}

impl DatagramTally {
    pub(crate) fn count_evicted(&mut self, reason: &'static str) {
        *self.evicted.entry(reason).or_default() += 1;
    }

    pub(crate) fn count_dropped(&mut self, reason: &'static str, datagrams: u64) {
        *self.dropped.entry(reason).or_default() += datagrams;
    }
}

/// Adds counts by reason, and resets them.
fn flush_reasons(
    sums: &Mutex<BTreeMap<&'static str, u64>>,
    counted: &mut BTreeMap<&'static str, u64>,
) {
    if counted.is_empty() {
        return;
    }
    let mut sums = sums.lock();
    for (reason, count) in std::mem::take(counted) {
        *sums.entry(reason).or_default() += count;
    }
}

impl DatagramCounters {
    /// Adds the tally, and resets it.
    pub(super) fn flush_tally(&self, tally: &mut DatagramTally) {
        for (counter, counted) in [
            (&self.received, &mut tally.received),
            (&self.to_upstream, &mut tally.to_upstream),
            (&self.replies, &mut tally.replies),
            (&self.to_downstream, &mut tally.to_downstream),
            (&self.in_kernel, &mut tally.in_kernel),
        ] {
            if *counted > 0 {
                counter.fetch_add(std::mem::take(counted), Relaxed);
            }
        }
        flush_reasons(&self.dropped, &mut tally.dropped);
        flush_reasons(&self.evicted, &mut tally.evicted);
    }

    pub(super) fn snapshot(&self) -> DatagramSnapshot {
        let (ended, started) = (self.ended.load(Relaxed), self.started.load(Relaxed));
        DatagramSnapshot {
            sessions: started.saturating_sub(ended),
            sessions_opened: started,
            received: self.received.load(Relaxed),
            to_upstream: self.to_upstream.load(Relaxed),
            replies: self.replies.load(Relaxed),
            to_downstream: self.to_downstream.load(Relaxed),
            in_kernel: self.in_kernel.load(Relaxed),
            dropped: self.dropped.lock().clone(),
            evicted: self.evicted.lock().clone(),
        }
    }
}
