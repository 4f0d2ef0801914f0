//! The record of a UDP session.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use peername_relay::Tally;
use peername_server::addr::{LocalAddr, PeerAddr, Target};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::outcome::Outcome;
use crate::policy::claims::HeaderFacts;
use crate::telemetry::counters::Counters;
use crate::telemetry::record::line::{DatagramCounts, Line, LineFields};

/// The record of a session. Dropping it counts and logs the session, once: at any end, and also when the proxy stops first.
#[derive(Debug)]
pub(crate) struct SessionRecord {
    counters: Arc<Counters>,
    /// The number of the session since the start of the process.
    pub(crate) id: u64,
    pub(crate) listener: LocalAddr,
    peer: PeerAddr,
    since: Instant,
    target: Target,
    pub(crate) tally: Tally,
    pub(crate) datagrams: DatagramCounts,
    pub(crate) fields: LineFields,
    /// Whether another process counts and logs the session.
    is_handed_over: bool,
}

/// The fields of a new session's record.
pub(crate) struct SessionStart {
    pub(crate) listener: LocalAddr,
    /// Whether a TPROXY rule redirected the first datagram.
    pub(crate) is_redirected: bool,
    /// The local address of the first datagram.
    pub(crate) local: Option<LocalAddr>,
    pub(crate) peer: PeerAddr,
    pub(crate) facts: HeaderFacts,
    pub(crate) target: Target,
}

/// The state of a record that is handed over to another process.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub(crate) struct RecordState {
    pub(crate) facts: HeaderFacts,
    pub(crate) local: Option<SocketAddr>,
    age: Duration,
    /// Bytes to upstream and downstream.
    bytes: [u64; 2],
    /// Datagrams to upstream and downstream.
    datagrams: [u64; 2],
}

impl SessionRecord {
    /// Begins the record of a session with its first datagram, and counts the session.
    pub(crate) fn begin(counters: &Arc<Counters>, start: SessionStart) -> Self {
        Self::new(counters, counters.count_session_opened(), start)
    }

    /// Continues the record of a session that another process has begun.
    pub(crate) fn resume(
        counters: &Arc<Counters>,
        start: SessionStart,
        state: &RecordState,
    ) -> Self {
        let mut record = Self::new(counters, counters.count_session_taken_over(), start);
        record.since = record.since.checked_sub(state.age).unwrap_or(record.since);
        [record.tally.to_upstream, record.tally.to_downstream] = state.bytes;
        [record.datagrams.to_upstream, record.datagrams.to_downstream] = state.datagrams;
        record
    }

    fn new(counters: &Arc<Counters>, id: u64, start: SessionStart) -> Self {
        Self {
            counters: Arc::clone(counters),
            id,
            listener: start.listener,
            peer: start.peer,
            since: Instant::now(),
            target: start.target,
            tally: Tally::default(),
            datagrams: DatagramCounts::default(),
            fields: LineFields::new(start.is_redirected, start.local, start.facts),
            is_handed_over: false,
        }
    }

    pub(crate) fn age(&self) -> Duration {
        self.since.elapsed()
    }

    /// The state with which another process continues the record.
    pub(crate) fn state(&self) -> RecordState {
        RecordState {
            facts: self.fields.facts,
            local: self.fields.local.as_ref().map(|local| local.0),
            age: self.since.elapsed(),
            bytes: [self.tally.to_upstream, self.tally.to_downstream],
            datagrams: [self.datagrams.to_upstream, self.datagrams.to_downstream],
        }
    }

    /// Leaves the session to another process, which counts and logs its end.
    pub(crate) fn hand_over(mut self) {
        self.is_handed_over = true;
    }

    pub(crate) fn end(mut self, outcome: Outcome) {
        self.fields.outcome = outcome;
    }
}

impl Drop for SessionRecord {
    fn drop(&mut self) {
        if self.is_handed_over {
            return self.counters.count_session_handed_over();
        }
        self.counters
            .count_session_ended(self.listener, &self.fields.outcome, &self.tally);
        let line = Line {
            listener: self.listener,
            peer: self.peer,
            since: self.since,
            target: Some(self.target),
            tally: self.tally,
            datagrams: Some(self.datagrams),
            fields: &self.fields,
        };
        line.report();
    }
}
