//! The structured log line of a connection or session, written at its end.
//!
//! Nothing that a peer sent is logged raw: values are escaped and truncated.

use std::fmt::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use peername_observe::escape::escape_into;
use peername_proto::Header;
use peername_relay::{RelayStats, Tally};
use peername_server::addr::{ClaimedSource, LocalAddr, PeerAddr, Target};
use peername_server::workers::Incoming;
use peername_server::workers::connections::ConnectionEntry;
use peername_sys::socket::upstream::local_addr;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::outcome::Outcome;
use crate::telemetry::counters::Counters;
use crate::telemetry::refusals;

/// The log record of a connection or session. It is counted and logged once, when it is dropped: at any end, and also
/// when the proxy stops first.
#[derive(Debug)]
pub(crate) struct Record {
    counters: Arc<Counters>,
    /// The address that the listening socket is bound to.
    listener: LocalAddr,
    /// Whether a TPROXY rule redirected the connection. The log's `listener` is then the original destination, which
    /// `local` holds.
    is_redirected: bool,
    /// The local address of the connection or the first datagram, for the log.
    local: Option<Box<LocalAddr>>,
    peer: PeerAddr,
    since: Instant,
    client: Option<ClaimedSource>,
    target: Option<Target>,
    tlvs: Option<Box<LoggedTlvs>>,
    /// Of a session; those of a connection are in its entry until it ends.
    pub(crate) tally: Tally,
    /// Of a connection.
    entry: Option<Arc<ConnectionEntry>>,
    /// Of a session: its number since the start.
    session_id: u64,
    /// `Some` for a UDP session.
    pub(crate) datagrams: Option<DatagramCounts>,
    outcome: Outcome,
    /// Whether another process counts and logs it.
    is_handed_over: bool,
}

/// What the record of a session that goes on in another process begins with.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub(crate) struct RecordState {
    local: Option<SocketAddr>,
    age: Duration,
    /// To upstream and downstream.
    bytes: [u64; 2],
    datagrams: [u64; 2],
}

/// Datagrams of a session, by direction.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DatagramCounts {
    pub(crate) to_upstream: u64,
    pub(crate) to_downstream: u64,
}

/// The TLVs to log, as text.
#[derive(Debug)]
pub(crate) struct LoggedTlvs(String);

impl Record {
    /// Begins the record of a connection that was just accepted, and counts it.
    pub(crate) fn begin(
        counters: &Arc<Counters>,
        incoming: &Incoming,
        entry: Arc<ConnectionEntry>,
    ) -> Self {
        counters.count_accepted();
        let is_redirected = incoming.listener != incoming.bound_to;
        let mut record = Self::new(counters, incoming.bound_to, is_redirected, incoming.peer);
        record.entry = Some(entry);
        if is_logged() {
            let local = local_addr(&incoming.stream).ok();
            record.local = local.map(|local| Box::new(LocalAddr::canonical(local)));
        }
        record
    }

    /// Begins the record of a UDP session with its first datagram, and counts the session.
    pub(crate) fn begin_session(
        counters: &Arc<Counters>,
        listener: LocalAddr,
        is_redirected: bool,
        local: Option<LocalAddr>,
        peer: PeerAddr,
    ) -> Self {
        let id = counters.count_session_started();
        let mut record = Self::new(counters, listener, is_redirected, peer);
        record.session_id = id;
        record.datagrams = Some(DatagramCounts::default());
        record.local = local.filter(|_| is_logged()).map(Box::new);
        record
    }

    fn new(
        counters: &Arc<Counters>,
        listener: LocalAddr,
        is_redirected: bool,
        peer: PeerAddr,
    ) -> Self {
        Self {
            counters: Arc::clone(counters),
            listener,
            is_redirected,
            local: None,
            peer,
            since: Instant::now(),
            client: None,
            target: None,
            tlvs: None,
            tally: Tally::default(),
            entry: None,
            session_id: 0,
            datagrams: None,
            outcome: Outcome::Cut,
            is_handed_over: false,
        }
    }

    /// The log's `listener`.
    fn logged_listener(&self) -> LocalAddr {
        match &self.local {
            Some(original) if self.is_redirected => **original,
            _ => self.listener,
        }
    }

    pub(crate) fn set_header(
        &mut self,
        client: Option<ClaimedSource>,
        tlvs: Option<Box<LoggedTlvs>>,
    ) {
        self.client = client;
        if let (Some(entry), Some(client)) = (&self.entry, client) {
            entry.set_client(client);
        }
        self.tlvs = tlvs;
    }

    pub(crate) fn set_target(&mut self, target: Target) {
        self.target = Some(target);
        if let Some(entry) = &self.entry {
            entry.set_target(target);
        }
    }

    /// The live statistics of a connection's relay.
    pub(crate) fn stats(&self) -> Arc<RelayStats> {
        let of_entry = |entry: &Arc<ConnectionEntry>| Arc::clone(entry.stats());
        self.entry.as_ref().map(of_entry).unwrap_or_default()
    }

    pub(crate) fn session_id(&self) -> u64 {
        self.session_id
    }

    pub(crate) fn listener(&self) -> LocalAddr {
        self.listener
    }

    pub(crate) fn client(&self) -> Option<ClaimedSource> {
        self.client
    }

    pub(crate) fn age(&self) -> Duration {
        self.since.elapsed()
    }

    /// What another process needs to go on with the record of a session.
    pub(crate) fn state(&self) -> RecordState {
        let datagrams = self.datagrams.unwrap_or_default();
        RecordState {
            local: self.local.as_ref().map(|local| local.0),
            age: self.since.elapsed(),
            bytes: [self.tally.to_upstream, self.tally.to_downstream],
            datagrams: [datagrams.to_upstream, datagrams.to_downstream],
        }
    }

    /// Goes on with the record of a session that another process has begun.
    pub(crate) fn resume(&mut self, state: &RecordState) {
        self.local = state
            .local
            .filter(|_| is_logged())
            .map(|local| Box::new(LocalAddr(local)));
        self.since = self.since.checked_sub(state.age).unwrap_or(self.since);
        [self.tally.to_upstream, self.tally.to_downstream] = state.bytes;
        let [to_upstream, to_downstream] = state.datagrams;
        self.datagrams = Some(DatagramCounts {
            to_upstream,
            to_downstream,
        });
    }

    /// Leaves the session to another process, which counts and logs its end.
    pub(crate) fn hand_over(mut self) {
        self.is_handed_over = true;
    }

    pub(crate) fn end(mut self, outcome: Outcome) {
        self.outcome = outcome;
    }

    /// Logs the line, at debug level because peers decide how many there are.
    fn log(&self) {
        if !is_logged() {
            return;
        }
        let outcome = &self.outcome;
        tracing::debug!(
            target: LOG_TARGET,
            listener = %self.logged_listener(),
            local = self.local.as_ref().map(tracing::field::display),
            peer = %self.peer,
            client = self.client.map(tracing::field::display),
            upstream = self.target.map(tracing::field::display),
            bytes_to_upstream = self.tally.to_upstream,
            bytes_to_downstream = self.tally.to_downstream,
            datagrams_to_upstream = self.datagrams.map(|datagrams| datagrams.to_upstream),
            datagrams_to_downstream = self.datagrams.map(|datagrams| datagrams.to_downstream),
            duration_ms = u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX),
            outcome = outcome.label(),
            ended_by = outcome.ended_by(),
            fault = outcome.fault().label(),
            tlvs = self.tlvs.as_ref().map(|tlvs| tlvs.0.as_str()),
            error = outcome.error(),
            "connection ended"
        );
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        if self.is_handed_over {
            return self.counters.count_session_handed_over();
        }
        if let Some(entry) = &self.entry {
            self.tally = entry.stats().tally();
            if entry.is_ended() {
                self.outcome = Outcome::ClosedByAdmin;
            }
        }
        match self.datagrams {
            None => self
                .counters
                .count_ended(self.listener, &self.outcome, &self.tally),
            Some(_) => self
                .counters
                .count_session_ended(self.listener, &self.outcome, &self.tally),
        }
        refusals::report(self.peer, &self.outcome);
        self.log();
    }
}

/// Whether connections are logged.
fn is_logged() -> bool {
    tracing::enabled!(target: LOG_TARGET, tracing::Level::DEBUG)
}

/// Renders the wanted TLVs of a header as `name=value` pairs; `None` when it has none of them.
pub(crate) fn render_tlvs(header: &Header<'_>, wanted: &[u8]) -> Option<Box<LoggedTlvs>> {
    if wanted.is_empty() {
        return None;
    }
    let mut text = String::new();
    for tlv in header.tlvs.iter().filter(|tlv| wanted.contains(&tlv.kind)) {
        let gap = if text.is_empty() { "" } else { " " };
        let _ = write!(text, "{gap}{}=", tlv.name());
        escape_into(&mut text, tlv.value, MAX_TLV_BYTES, b"%=");
    }
    (!text.is_empty()).then(|| Box::new(LoggedTlvs(text)))
}

/// The `tracing` target of these lines and no others.
const LOG_TARGET: &str = "peername::connection";
/// A TLV may have 64 KiB; this much is enough to recognize any of them.
const MAX_TLV_BYTES: usize = 256;
