//! The counters behind the metrics. A snapshot is cheap and never blocks an event loop.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use peername_relay::Tally;

use crate::outcome::Outcome;

mod datagrams;

use datagrams::DatagramCounters;
pub use datagrams::DatagramSnapshot;
pub(crate) use datagrams::DatagramTally;

/// The counters of one proxy since its start.
#[derive(Debug, Default)]
pub struct Counters {
    accepted: AtomicU64,
    ended: AtomicU64,
    to_upstream: AtomicU64,
    to_downstream: AtomicU64,
    undelivered: AtomicU64,
    collisions: AtomicU64,
    reloads: AtomicU64,
    reloads_refused: AtomicU64,
    datagrams: DatagramCounters,
    /// Ends by outcome. Locked once per connection, at its end.
    outcomes: Mutex<BTreeMap<&'static str, u64>>,
}

/// The values of the counters at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Connections accepted from the kernel.
    pub accepted: u64,
    /// Connections open now.
    pub active: u64,
    /// Bytes that backends accepted.
    pub to_upstream: u64,
    /// Bytes that clients accepted.
    pub to_downstream: u64,
    /// Bytes received for a peer that had already closed.
    pub undelivered: u64,
    /// Connections whose client port was taken.
    pub collisions: u64,
    /// Reloads that took effect.
    pub reloads: u64,
    /// Reloads that were refused because of an error, and changed nothing.
    pub reloads_refused: u64,
    /// The UDP counters.
    pub datagrams: DatagramSnapshot,
    /// Ended connections and sessions by [`Outcome::label`].
    pub outcomes: BTreeMap<&'static str, u64>,
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

    /// Counts a reload that took effect or was refused.
    pub fn count_reload(&self, took_effect: bool) {
        let counter = match took_effect {
            true => &self.reloads,
            false => &self.reloads_refused,
        };
        counter.fetch_add(1, Relaxed);
    }

    /// Counts the end of a connection.
    pub fn count_ended(&self, outcome: &Outcome, tally: &Tally) {
        self.ended.fetch_add(1, Relaxed);
        self.add_outcome(outcome, tally);
    }

    /// Counts a new UDP session.
    pub fn count_session_started(&self) {
        self.datagrams.started.fetch_add(1, Relaxed);
    }

    /// Counts the end of a UDP session.
    pub fn count_session_ended(&self, outcome: &Outcome, tally: &Tally) {
        self.datagrams.ended.fetch_add(1, Relaxed);
        self.add_outcome(outcome, tally);
    }

    /// Adds the tally of a worker, and resets it.
    pub(crate) fn flush_tally(&self, tally: &mut DatagramTally) {
        self.datagrams.flush_tally(tally);
    }

    fn add_outcome(&self, outcome: &Outcome, tally: &Tally) {
        self.to_upstream.fetch_add(tally.to_upstream, Relaxed);
        self.to_downstream.fetch_add(tally.to_downstream, Relaxed);
        self.undelivered.fetch_add(tally.undelivered, Relaxed);
        let mut outcomes = self.outcomes.lock().unwrap_or_else(PoisonError::into_inner);
        *outcomes.entry(outcome.label()).or_default() += 1;
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
            reloads: self.reloads.load(Relaxed),
            reloads_refused: self.reloads_refused.load(Relaxed),
            datagrams: self.datagrams.snapshot(),
            outcomes: self
                .outcomes
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clone(),
        }
    }
}
