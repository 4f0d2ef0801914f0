//! One structured line a connection, at its end.
//!
//! What a peer sent is never logged raw: values are escaped and capped before they get here.

use std::fmt::Write;

use peername_proto::Header;
use tokio::time::Instant;

use crate::addr::{ClaimedSource, LocalAddr, PeerAddr, Target};
use crate::outcome::Outcome;

/// What is known of a connection so far.
#[derive(Debug)]
pub(crate) struct Record {
    listener: LocalAddr,
    peer: PeerAddr,
    since: Instant,
    client: Option<ClaimedSource>,
    target: Option<Target>,
    tlvs: Option<Box<Tlvs>>,
}

/// The TLVs that the log was asked to show, ready to print.
#[derive(Debug)]
pub(crate) struct Tlvs(String);

impl Record {
    pub(crate) fn new(listener: LocalAddr, peer: PeerAddr, since: Instant) -> Self {
        Self {
            listener,
            peer,
            since,
            client: None,
            target: None,
            tlvs: None,
        }
    }

    pub(crate) fn header(&mut self, client: Option<ClaimedSource>, tlvs: Option<Box<Tlvs>>) {
        self.client = client;
        self.tlvs = tlvs;
    }

    pub(crate) fn target(&mut self, target: Target) {
        self.target = Some(target);
    }

    /// Writes the line, at debug level: peers decide how many there are.
    pub(crate) fn log(&self, outcome: &Outcome) {
        if !tracing::enabled!(target: TARGET, tracing::Level::DEBUG) {
            return;
        }
        let (up, down) = outcome.bytes();
        let datagrams = outcome.datagrams();
        let error = match outcome {
            Outcome::Failed(failure) => Some(failure.to_string()),
            Outcome::Relayed(_) | Outcome::Carried(_) => None,
        };
        tracing::debug!(
            target: TARGET,
            listener = %self.listener,
            peer = %self.peer,
            client = self.client.map(tracing::field::display),
            upstream = self.target.map(tracing::field::display),
            bytes_to_upstream = up,
            bytes_to_downstream = down,
            datagrams_to_upstream = datagrams.map(|(up, _)| up),
            datagrams_to_downstream = datagrams.map(|(_, down)| down),
            duration_ms = u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX),
            outcome = outcome.label(),
            ended_by = outcome.ended_by(),
            fault = outcome.fault().label(),
            tlvs = self.tlvs.as_ref().map(|tlvs| tlvs.0.as_str()),
            error,
            "connection ended"
        );
    }
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
        escape(tlv.value, &mut text);
    }
    (!text.is_empty()).then(|| Box::new(Tlvs(text)))
}

/// Printable ASCII as it is, `\xNN` for the rest, so that no terminal or log reader is driven by what
/// a client sent. Reversible, except for what is cut.
fn escape(value: &[u8], out: &mut String) {
    for &octet in value.iter().take(MOST_SHOWN) {
        match octet {
            b'\\' | b'"' | b' ' => {
                let _ = write!(out, "\\x{octet:02x}");
            }
            0x21..=0x7e => out.push(char::from(octet)),
            _ => {
                let _ = write!(out, "\\x{octet:02x}");
            }
        }
    }
    if value.len() > MOST_SHOWN {
        let _ = write!(out, "...({}_octets)", value.len());
    }
}

/// Set with `RUST_LOG`-like filters and asserted by tests: the lines of connections and no others.
const TARGET: &str = "peername::connection";
/// A TLV may have 64 KiB; this is enough of any of them to recognise it.
const MOST_SHOWN: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peer_text_is_escaped_and_capped() {
        let mut out = String::new();
        escape(b"a b\n\x1b[31m\"\\\xff", &mut out);
        assert_eq!(out, "a\\x20b\\x0a\\x1b[31m\\x22\\x5c\\xff");
        out.clear();
        escape(&[b'x'; 300], &mut out);
        assert_eq!(out.len(), 256 + "...(300_octets)".len());
    }
}
