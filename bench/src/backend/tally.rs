//! What came of a one-way stream: which datagrams, from whom, and what was wrong with them.
//!
//! The generator can't see this, as nothing comes back. It asks for a [`Report`] afterwards.

use std::net::SocketAddrV4;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use serde::{Deserialize, Serialize};

use crate::datagram::Tag;

/// The length of a streamed datagram without header: what fits into an IPv6 packet of the least
/// MTU, and what QUIC sends first (RFC 9000, section 14.1).
pub(crate) const STREAMED: usize = 1200;

/// Counts one run.
#[derive(Default)]
pub(crate) struct Tally {
    clients: Vec<Client>,
    received: u64,
    reordered: u64,
    faults: u64,
    first_fault: Option<String>,
    /// Datagrams of no kind.
    pub(crate) unknown: u64,
    span: Option<(Instant, Instant)>,
}

/// What [`Tally`] counted, as it travels.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Report {
    /// Right ones, each once.
    pub(crate) received: u64,
    /// Those of them that came after a later one of their client.
    pub(crate) reordered: u64,
    /// From the first one's arrival to the last one's.
    pub(crate) span: Duration,
    /// Spoiled, repeated, or from another address than their client's.
    pub(crate) faults: u64,
    /// What was wrong with the first of those.
    pub(crate) first_fault: Option<String>,
    pub(crate) unknown: u64,
    /// Whose datagrams came from where.
    pub(crate) peers: Vec<(u32, SocketAddrV4)>,
}

struct Client {
    serial: u32,
    peer: SocketAddrV4,
    highest: u64,
    /// One bit for each datagram that came.
    seen: Vec<u64>,
}

impl Tally {
    pub(crate) fn count(&mut self, datagram: &[u8], peer: SocketAddrV4) {
        match self.admit(datagram, peer) {
            Ok(is_late) => {
                self.received += 1;
                self.reordered += u64::from(is_late);
                let now = Instant::now();
                let (first, _) = self.span.unwrap_or((now, now));
                self.span = Some((first, now));
            }
            Err(error) => {
                self.faults += 1;
                self.first_fault.get_or_insert_with(|| format!("{error:#}"));
            }
        }
    }

    pub(crate) fn report(&self) -> Report {
        let span = self.span.map(|(first, last)| last - first);
        let peers = self.clients.iter();
        Report {
            received: self.received,
            reordered: self.reordered,
            span: span.unwrap_or_default(),
            faults: self.faults,
            first_fault: self.first_fault.clone(),
            unknown: self.unknown,
            peers: peers.map(|client| (client.serial, client.peer)).collect(),
        }
    }

    /// Whether it came after a later one.
    fn admit(&mut self, datagram: &[u8], peer: SocketAddrV4) -> Result<bool> {
        let Tag {
            serial, sequence, ..
        } = Tag::verify(datagram, STREAMED)?;
        // An address has one client, and a client one address: where only one of them fits,
        // somebody's datagram went another's way.
        let mut known = self.clients.iter_mut();
        let known = known.find_map(|client| {
            let is_meant = client.serial == serial || client.peer == peer;
            is_meant.then_some(client)
        });
        let Some(client) = known else {
            ensure!(self.clients.len() < CLIENTS, "more than {CLIENTS} clients");
            let mut client = Client::new(serial, peer);
            client.mark(sequence)?;
            self.clients.push(client);
            return Ok(false);
        };
        if client.serial != serial || client.peer != peer {
            bail!(
                "misdelivered: client {serial} came from {peer}, which is not where it came from \
                 before, or is client {}'s",
                client.serial
            );
        }
        client.mark(sequence)
    }
}

impl Client {
    fn new(serial: u32, peer: SocketAddrV4) -> Self {
        Self {
            serial,
            peer,
            highest: 0,
            seen: Vec::new(),
        }
    }

    fn mark(&mut self, sequence: u64) -> Result<bool> {
        ensure!(sequence < SEQUENCES, "the run is too long to keep count");
        let (word, bit) = ((sequence / 64) as usize, 1 << (sequence % 64));
        if self.seen.len() <= word {
            self.seen.resize(word + 1, 0);
        }
        ensure!(
            self.seen[word] & bit == 0,
            "datagram {sequence} of client {} came twice",
            self.serial
        );
        self.seen[word] |= bit;
        let is_late = sequence < self.highest;
        self.highest = self.highest.max(sequence);
        Ok(is_late)
    }
}

/// More than any workload has; they are looked up one after the other.
const CLIENTS: usize = 64;

/// Datagrams of one client, so that no number that comes in takes more than 32 MiB of bits. A run of
/// minutes stays below.
const SEQUENCES: u64 = 1 << 28;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datagram::Kind;

    fn datagram(serial: u32, sequence: u64) -> [u8; STREAMED] {
        let mut bytes = [0; STREAMED];
        let kind = Kind::Stream;
        Tag {
            kind,
            serial,
            sequence,
        }
        .write(&mut bytes);
        bytes
    }

    fn tally(arrivals: &[(u32, u64, u16)]) -> Report {
        let mut tally = Tally::default();
        for &(serial, sequence, port) in arrivals {
            let peer = SocketAddrV4::new([10, 1, 0, 1].into(), port);
            tally.count(&datagram(serial, sequence), peer);
        }
        tally.report()
    }

    #[test]
    fn counts_what_is_right() {
        let report = tally(&[(1, 0, 5), (2, 0, 6), (1, 3, 5), (1, 2, 5)]);
        assert_eq!(
            (report.received, report.reordered, report.faults),
            (4, 1, 0)
        );
        assert_eq!(report.peers.len(), 2);
    }

    #[test]
    fn notices_what_is_wrong() {
        let repeated = tally(&[(1, 0, 5), (1, 1, 5), (1, 0, 5)]);
        assert_eq!((repeated.received, repeated.faults), (2, 1));
        let another_address = tally(&[(1, 0, 5), (1, 1, 6)]);
        assert_eq!((another_address.received, another_address.faults), (1, 1));
        let anothers_address = tally(&[(1, 0, 5), (2, 0, 6), (1, 1, 6)]);
        assert_eq!((anothers_address.received, anothers_address.faults), (2, 1));
        let endless = tally(&[(1, u64::MAX, 5)]);
        assert_eq!((endless.received, endless.faults), (0, 1));
    }
}
