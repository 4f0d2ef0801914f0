//! Of UDP: every datagram that comes is either sent on or stands here with the reason why not.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

#[derive(Debug, Default)]
pub(super) struct Datagrams {
    pub(super) began: AtomicU64,
    pub(super) ended: AtomicU64,
    received: AtomicU64,
    to_upstream: AtomicU64,
    replies: AtomicU64,
    to_downstream: AtomicU64,
    in_kernel: AtomicU64,
    dropped: Mutex<BTreeMap<&'static str, u64>>,
}

/// What one worker has counted since it last told.
#[derive(Debug, Default)]
pub(crate) struct DatagramTally {
    pub(crate) received: u64,
    pub(crate) to_upstream: u64,
    pub(crate) replies: u64,
    pub(crate) to_downstream: u64,
    pub(crate) in_kernel: u64,
    dropped: BTreeMap<&'static str, u64>,
}

/// The UDP counters at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DatagramSnapshot {
    /// Sessions open now.
    pub sessions: u64,
    /// Sessions since the start.
    pub sessions_began: u64,
    /// Datagrams from balancers.
    pub received: u64,
    /// Datagrams that went to backends.
    pub to_upstream: u64,
    /// Datagrams from backends.
    pub replies: u64,
    /// Datagrams that went to balancers.
    pub to_downstream: u64,
    /// Of those that went to either side, the ones that the kernel carried.
    pub in_kernel: u64,
    /// Datagrams of either direction that went nowhere, by reason. `receive_buffer_full` are those that the
    /// kernel threw away at a socket before they were received here (SO_RXQ_OVFL), for a wrong checksum, too.
    pub dropped: BTreeMap<&'static str, u64>,
}

impl DatagramTally {
    pub(crate) fn dropped(&mut self, reason: &'static str, datagrams: u64) {
        *self.dropped.entry(reason).or_default() += datagrams;
    }
}

impl Datagrams {
    pub(super) fn add(&self, tally: &mut DatagramTally) {
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
        if tally.dropped.is_empty() {
            return;
        }
        let mut dropped = self.dropped.lock().unwrap_or_else(PoisonError::into_inner);
        for (reason, counted) in std::mem::take(&mut tally.dropped) {
            *dropped.entry(reason).or_default() += counted;
        }
    }

    pub(super) fn snapshot(&self) -> DatagramSnapshot {
        let (ended, began) = (self.ended.load(Relaxed), self.began.load(Relaxed));
        DatagramSnapshot {
            sessions: began.saturating_sub(ended),
            sessions_began: began,
            received: self.received.load(Relaxed),
            to_upstream: self.to_upstream.load(Relaxed),
            replies: self.replies.load(Relaxed),
            to_downstream: self.to_downstream.load(Relaxed),
            in_kernel: self.in_kernel.load(Relaxed),
            dropped: self
                .dropped
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clone(),
        }
    }
}
