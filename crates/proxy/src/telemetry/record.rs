//! One structured line a connection, at its end.
//!
//! What a peer sent is never logged raw: values are escaped and capped before they get here.

use std::fmt::Write;
use std::sync::Arc;

use peername_observe::escape::escape_into;
use peername_proto::Header;
use peername_relay::Tally;
use peername_sys::socket::upstream::local_addr;
use tokio::time::Instant;

use crate::outcome::Outcome;
use crate::telemetry::counters::Counters;
use crate::telemetry::refusals;
use peername_server::addr::{ClaimedSource, LocalAddr, PeerAddr, Target};
use peername_server::workers::Incoming;

/// What is known of a connection so far. However it ends, also cut short by the end of the proxy, it
/// is counted and logged once: when this is dropped.
#[derive(Debug)]
pub(crate) struct Record {
    counters: Arc<Counters>,
    listener: LocalAddr,
    /// The address of ours that the connection or the first datagram came to, for the log.
    local: Option<Box<LocalAddr>>,
    peer: PeerAddr,
    since: Instant,
    client: Option<ClaimedSource>,
    target: Option<Target>,
    tlvs: Option<Box<Tlvs>>,
    pub(crate) tally: Tally,
    /// Of a UDP session.
    pub(crate) datagrams: Option<Exchanged>,
    outcome: Outcome,
}

/// How many datagrams went which way.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Exchanged {
    pub(crate) to_upstream: u64,
    pub(crate) to_downstream: u64,
}

/// The TLVs that the log was asked to show, ready to print.
#[derive(Debug)]
pub(crate) struct Tlvs(String);

impl Record {
    /// Begins with a connection that was just accepted, and counts it.
    pub(crate) fn begin(counters: &Arc<Counters>, incoming: &Incoming) -> Self {
        counters.accepted();
        let mut record = Self::new(counters, incoming.listener, incoming.peer, None);
        if is_logged() {
            let local = local_addr(&incoming.stream).ok();
            record.local = local.map(|local| Box::new(LocalAddr::canonical(local)));
        }
        record
    }

    /// Begins with a UDP session's first datagram, and counts the session.
    pub(crate) fn begin_session(
        counters: &Arc<Counters>,
        listener: LocalAddr,
        local: Option<LocalAddr>,
        peer: PeerAddr,
    ) -> Self {
        counters.session_began();
        let mut record = Self::new(counters, listener, peer, Some(Exchanged::default()));
        record.local = local.filter(|_| is_logged()).map(Box::new);
        record
    }

    fn new(
        counters: &Arc<Counters>,
        listener: LocalAddr,
        peer: PeerAddr,
        datagrams: Option<Exchanged>,
    ) -> Self {
        Self {
            counters: Arc::clone(counters),
            listener,
            local: None,
            peer,
            since: Instant::now(),
            client: None,
            target: None,
            tlvs: None,
            tally: Tally::default(),
            datagrams,
            outcome: Outcome::Cut,
        }
    }

    pub(crate) fn set_header(&mut self, client: Option<ClaimedSource>, tlvs: Option<Box<Tlvs>>) {
        self.client = client;
        self.tlvs = tlvs;
    }

    pub(crate) fn set_target(&mut self, target: Target) {
        self.target = Some(target);
    }

    pub(crate) fn end(mut self, outcome: Outcome) {
        self.outcome = outcome;
    }

    /// Writes the line, at debug level: peers decide how many there are.
    fn log(&self) {
        if !is_logged() {
            return;
        }
        let outcome = &self.outcome;
        tracing::debug!(
            target: TARGET,
            listener = %self.listener,
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
        match self.datagrams {
            None => self.counters.ended(&self.outcome, &self.tally),
            Some(_) => self.counters.session_ended(&self.outcome, &self.tally),
        }
        refusals::report(self.peer, &self.outcome);
        self.log();
    }
}

/// Whether connections have a line.
fn is_logged() -> bool {
    tracing::enabled!(target: TARGET, tracing::Level::DEBUG)
}

/// Renders the wanted TLVs of a header as `name=value` pairs, `None` when it has none of them.
pub(crate) fn tlvs(header: &Header<'_>, wanted: &[u8]) -> Option<Box<Tlvs>> {
    if wanted.is_empty() {
        return None;
    }
    let mut text = String::new();
    for tlv in header.tlvs.iter().filter(|tlv| wanted.contains(&tlv.kind)) {
        let gap = if text.is_empty() { "" } else { " " };
        let _ = write!(text, "{gap}{}=", tlv.name());
        escape_into(&mut text, tlv.value, MAX_TLV_BYTES, b"%=");
    }
    (!text.is_empty()).then(|| Box::new(Tlvs(text)))
}

/// The lines of connections and no others.
const TARGET: &str = "peername::connection";
/// A TLV may have 64 KiB; this much is enough to recognise any of them.
const MAX_TLV_BYTES: usize = 256;
