//! The sink of a one-way stream: counts and verifies the datagrams that arrive.
//!
//! The generator can't verify them, as nothing comes back. It queries a [`StreamReport`] afterwards.

use std::net::SocketAddrV4;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use serde::{Deserialize, Serialize};

use crate::wire::datagram::Tag;

/// The length of a streamed datagram without header: it fits into an IPv6 packet of the minimum MTU, and is the size of
/// QUIC's first datagrams (RFC 9000, section 14.1).
pub(crate) const STREAM_DATAGRAM_BYTES: usize = 1200;

/// Counts and verifies the datagrams of one run.
#[derive(Default)]
pub(crate) struct Tally {
    clients: Vec<Client>,
    received: u64,
    reordered: u64,
    faults: u64,
    first_fault: Option<String>,
    /// Datagrams of unknown kind.
    pub(crate) unknown: u64,
    span: Option<(Instant, Instant)>,
}

/// The counts of a [`Tally`], as they are sent to the generator.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct StreamReport {
    /// Correct datagrams, each counted once.
    pub(crate) received: u64,
    /// Those of them that arrived after a later one of the same client.
    pub(crate) reordered: u64,
    /// From the first arrival to the last.
    pub(crate) span: Duration,
    /// Corrupted, repeated, or from another address than their client's.
    pub(crate) faults: u64,
    /// The first fault.
    pub(crate) first_fault: Option<String>,
    pub(crate) unknown: u64,
    /// The source of each client's datagrams.
    pub(crate) peers: Vec<(u32, SocketAddrV4)>,
}

struct Client {
    serial: u32,
    peer: SocketAddrV4,
    highest: u64,
    /// One bit for each datagram that arrived.
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

    pub(crate) fn report(&self) -> StreamReport {
        StreamReport {
            received: self.received,
            reordered: self.reordered,
            span: self
                .span
                .map_or(Duration::ZERO, |(first, last)| last - first),
            faults: self.faults,
            first_fault: self.first_fault.clone(),
            unknown: self.unknown,
            peers: self
                .clients
                .iter()
                .map(|client| (client.serial, client.peer))
                .collect(),
        }
    }

    /// Verifies and registers a datagram; true if it arrived after a later one.
    fn admit(&mut self, datagram: &[u8], peer: SocketAddrV4) -> Result<bool> {
        let Tag {
            serial, sequence, ..
        } = Tag::verify(datagram, STREAM_DATAGRAM_BYTES)?;
        // Each address has one client, and each client one address: if only the serial or only the address
        // matches, the datagram went through another client's session.
        let known = self
            .clients
            .iter_mut()
            .find(|client| client.serial == serial || client.peer == peer);
        let Some(client) = known else {
            ensure!(
                self.clients.len() < MAX_CLIENTS,
                "more than {MAX_CLIENTS} clients"
            );
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

    /// Registers a datagram; true if it arrived after a later one.
    fn mark(&mut self, sequence: u64) -> Result<bool> {
        ensure!(sequence < MAX_SEQUENCE, "the run is too long to keep count");
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

/// More than any workload has; the lookup is linear.
const MAX_CLIENTS: usize = 64;

/// Bounds the sequence number, so that no received number takes more than 32 MiB of bits. A run of minutes stays
/// below.
const MAX_SEQUENCE: u64 = 1 << 28;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::datagram::DatagramKind;

    fn datagram(serial: u32, sequence: u64) -> [u8; STREAM_DATAGRAM_BYTES] {
        let mut bytes = [0; STREAM_DATAGRAM_BYTES];
        let kind = DatagramKind::Stream;
        Tag {
            kind,
            serial,
            sequence,
        }
        .write(&mut bytes);
        bytes
    }

    fn tally(arrivals: &[(u32, u64, u16)]) -> StreamReport {
        let mut tally = Tally::default();
        for &(serial, sequence, port) in arrivals {
            let peer = SocketAddrV4::new([10, 1, 0, 1].into(), port);
            tally.count(&datagram(serial, sequence), peer);
        }
        tally.report()
    }

    #[test]
    fn correct_datagrams_are_counted() {
        let report = tally(&[(1, 0, 5), (2, 0, 6), (1, 3, 5), (1, 2, 5)]);
        assert_eq!(
            (report.received, report.reordered, report.faults),
            (4, 1, 0)
        );
        assert_eq!(report.peers.len(), 2);
    }

    #[test]
    fn faults_are_detected() {
        let repeated = tally(&[(1, 0, 5), (1, 1, 5), (1, 0, 5)]);
        assert_eq!((repeated.received, repeated.faults), (2, 1));
        let unknown_address = tally(&[(1, 0, 5), (1, 1, 6)]);
        assert_eq!((unknown_address.received, unknown_address.faults), (1, 1));
        let other_client = tally(&[(1, 0, 5), (2, 0, 6), (1, 1, 6)]);
        assert_eq!((other_client.received, other_client.faults), (2, 1));
        let endless = tally(&[(1, u64::MAX, 5)]);
        assert_eq!((endless.received, endless.faults), (0, 1));
    }
}
