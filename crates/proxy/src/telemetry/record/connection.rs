//! The record of a TCP connection.

use std::sync::Arc;

use peername_relay::{End, RelayStats, Side, Tally};
use peername_server::addr::{LocalAddr, Target};
use peername_server::workers::Incoming;
use peername_server::workers::connections::{ConnectionEntry, EndReason};
use peername_sys::socket::upstream::local_addr;

use crate::outcome::Outcome;
use crate::policy::claims::HeaderFacts;
use crate::telemetry::counters::Counters;
use crate::telemetry::record::line::{Line, LineFields, LoggedTlvs, is_logged};

/// The record of a connection: its entry in the worker's table, and the fields that only the log line has. Dropping the record
/// counts and logs the connection, once: at any end, and also when the proxy stops first.
#[derive(Debug)]
pub(crate) struct ConnectionRecord {
    counters: Arc<Counters>,
    entry: Arc<ConnectionEntry>,
    fields: LineFields,
    /// Whether the connection is the balancer's own: its header names no client.
    is_balancers_own: bool,
}

impl ConnectionRecord {
    /// Begins the record of a connection that was just accepted, and counts it. To be called before the connection's future is
    /// polled: a list of clients may end the connection before.
    pub(crate) fn begin(
        counters: &Arc<Counters>,
        incoming: &Incoming,
        entry: Arc<ConnectionEntry>,
    ) -> Self {
        counters.count_accepted();
        let local = is_logged()
            .then(|| local_addr(&incoming.stream).ok())
            .flatten();
        Self {
            counters: Arc::clone(counters),
            entry,
            fields: LineFields::new(
                incoming.local != incoming.bound_to,
                local.map(LocalAddr::canonical),
                HeaderFacts::default(),
            ),
            is_balancers_own: false,
        }
    }

    pub(crate) fn set_header(&mut self, facts: HeaderFacts, tlvs: Option<Box<LoggedTlvs>>) {
        self.fields.facts = facts;
        if let Some(client) = facts.claim {
            self.entry.set_client(client);
        }
        self.fields.tlvs = tlvs;
    }

    pub(crate) fn set_balancers_own(&mut self) {
        self.is_balancers_own = true;
    }

    pub(crate) fn set_target(&self, target: Target) {
        self.entry.set_target(target);
    }

    /// The live statistics of the relay.
    pub(crate) fn stats(&self) -> Arc<RelayStats> {
        Arc::clone(self.entry.stats())
    }

    /// Whether the balancer has reset a connection of its own, on which it has sent nothing but the header.
    fn is_health_check(&self, tally: &Tally) -> bool {
        let outcome = &self.fields.outcome;
        let is_reset = matches!(outcome, Outcome::Relayed(End::Reset(Side::Downstream)));
        self.is_balancers_own && is_reset && tally.to_upstream == 0
    }

    pub(crate) fn end(mut self, outcome: Outcome) {
        self.fields.outcome = outcome;
    }
}

impl Drop for ConnectionRecord {
    fn drop(&mut self) {
        let entry = &self.entry;
        let tally = entry.stats().tally();
        match entry.end_reason() {
            Some(EndReason::Admin) => self.fields.outcome = Outcome::ClosedByAdmin,
            Some(EndReason::AccessRevoked) => self.fields.outcome = Outcome::AccessRevoked,
            None if self.is_health_check(&tally) => self.fields.outcome = Outcome::HealthCheck,
            None => {}
        }
        self.counters
            .count_ended(entry.listener(), &self.fields.outcome, &tally);
        let line = Line {
            listener: entry.listener(),
            peer: entry.peer(),
            since: entry.since(),
            target: entry.target(),
            tally,
            datagrams: None,
            fields: &self.fields,
        };
        line.report();
    }
}
