//! What is counted. Reading is cheap and never blocks a loop.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use peername_relay::Tally;

use crate::outcome::Outcome;

mod datagrams;

pub use datagrams::DatagramSnapshot;
pub(crate) use datagrams::DatagramTally;
use datagrams::Datagrams;

/// The counters of one proxy, from its start.
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
    datagrams: Datagrams,
    /// By outcome. Touched once a connection, at its end.
    outcomes: Mutex<BTreeMap<&'static str, u64>>,
}

/// The counters at one moment.
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
    /// Bytes received for somebody who was gone.
    pub undelivered: u64,
    /// Connections whose client port was taken.
    pub collisions: u64,
    /// Reloads that took effect.
    pub reloads: u64,
    /// Reloads that changed nothing, because something was wrong.
    pub reloads_refused: u64,
    /// Of UDP.
    pub datagrams: DatagramSnapshot,
    /// Ended connections and sessions by [`Outcome::label`].
    pub outcomes: BTreeMap<&'static str, u64>,
}

impl Counters {
    /// A connection came.
    pub fn accepted(&self) {
        self.accepted.fetch_add(1, Relaxed);
    }

    /// The client's own port was taken.
    pub fn collided(&self) {
        self.collisions.fetch_add(1, Relaxed);
    }

    /// A reload took effect, or was refused.
    pub fn reloaded(&self, took_effect: bool) {
        let counter = match took_effect {
            true => &self.reloads,
            false => &self.reloads_refused,
        };
        counter.fetch_add(1, Relaxed);
    }

    /// A connection ended.
    pub fn ended(&self, outcome: &Outcome, tally: &Tally) {
        self.ended.fetch_add(1, Relaxed);
        self.add_up(outcome, tally);
    }

    /// A UDP session began.
    pub fn session_began(&self) {
        self.datagrams.began.fetch_add(1, Relaxed);
    }

    /// A UDP session ended.
    pub fn session_ended(&self, outcome: &Outcome, tally: &Tally) {
        self.datagrams.ended.fetch_add(1, Relaxed);
        self.add_up(outcome, tally);
    }

    /// Adds what a worker has counted by itself, and empties it.
    pub(crate) fn add(&self, counted: &mut DatagramTally) {
        self.datagrams.add(counted);
    }

    fn add_up(&self, outcome: &Outcome, tally: &Tally) {
        self.to_upstream.fetch_add(tally.to_upstream, Relaxed);
        self.to_downstream.fetch_add(tally.to_downstream, Relaxed);
        self.undelivered.fetch_add(tally.undelivered, Relaxed);
        let mut outcomes = self.outcomes.lock().unwrap_or_else(PoisonError::into_inner);
        *outcomes.entry(outcome.label()).or_default() += 1;
    }

    /// All of them.
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
