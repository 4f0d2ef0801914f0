//! The structured log line of a connection or session.
//!
//! Nothing that a peer sent is logged raw: values are escaped and truncated.

use std::fmt::Write;

use peername_observe::escape::escape_into;
use peername_proto::Header;
use peername_relay::Tally;
use peername_server::addr::{LocalAddr, PeerAddr, Target};
use tokio::time::Instant;

use crate::outcome::Outcome;
use crate::policy::claims::HeaderFacts;
use crate::telemetry::refusals;

/// The TLVs to log, as text.
#[derive(Debug)]
pub(crate) struct LoggedTlvs(String);

/// Datagrams of a session, by direction.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DatagramCounts {
    pub(crate) to_upstream: u64,
    pub(crate) to_downstream: u64,
}

/// The fields of a log line that the records of connections and of sessions keep alike.
#[derive(Debug)]
pub(crate) struct LineFields {
    /// Whether a TPROXY rule redirected the connection. The log's `listener` is then the original destination, which
    /// `local` holds.
    is_redirected: bool,
    /// The local address of the connection or the first datagram, if the line is logged.
    pub(super) local: Option<Box<LocalAddr>>,
    /// The facts of the header; empty until a connection's header has been read.
    pub(crate) facts: HeaderFacts,
    pub(super) tlvs: Option<Box<LoggedTlvs>>,
    pub(super) outcome: Outcome,
}

/// A log line.
pub(super) struct Line<'a> {
    /// The address that the listening socket is bound to.
    pub(super) listener: LocalAddr,
    pub(super) peer: PeerAddr,
    pub(super) since: Instant,
    pub(super) target: Option<Target>,
    pub(super) tally: Tally,
    /// `None` for a TCP connection.
    pub(super) datagrams: Option<DatagramCounts>,
    pub(super) fields: &'a LineFields,
}

impl LineFields {
    pub(super) fn new(is_redirected: bool, local: Option<LocalAddr>, facts: HeaderFacts) -> Self {
        Self {
            is_redirected,
            local: local.filter(|_| is_logged()).map(Box::new),
            facts,
            tlvs: None,
            outcome: Outcome::Cut,
        }
    }
}

impl Line<'_> {
    /// Warns of an end that concerns more than one client, and logs the line: at debug level, because peers decide how many
    /// there are.
    pub(super) fn report(&self) {
        let fields = self.fields;
        refusals::report(self.peer, fields.facts.claim, &fields.outcome);
        let local = fields.local.as_deref().copied();
        let listener = local
            .filter(|_| fields.is_redirected)
            .unwrap_or(self.listener);
        tracing::debug!(
            target: LOG_TARGET,
            %listener,
            local = local.map(tracing::field::display),
            peer = %self.peer,
            client = fields.facts.claim.map(tracing::field::display),
            upstream = self.target.map(tracing::field::display),
            bytes_to_upstream = self.tally.to_upstream,
            bytes_to_downstream = self.tally.to_downstream,
            datagrams_to_upstream = self.datagrams.map(|datagrams| datagrams.to_upstream),
            datagrams_to_downstream = self.datagrams.map(|datagrams| datagrams.to_downstream),
            duration_ms = u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX),
            outcome = fields.outcome.label(),
            ended_by = fields.outcome.ended_by(),
            fault = fields.outcome.fault().label(),
            tlvs = fields.tlvs.as_ref().map(|tlvs| tlvs.0.as_str()),
            error = fields.outcome.error(),
            "connection ended"
        );
    }
}

/// Whether ended connections and sessions are logged.
pub(super) fn is_logged() -> bool {
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
