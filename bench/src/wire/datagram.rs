//! The datagrams of the UDP workloads: a tag with client and sequence number, then the pattern.
//!
//! On a connection the position determines the next byte. A datagram may be lost, so it identifies itself; the rest of it
//! depends on the tag, so a flipped bit in the tag is detected, too.

use std::net::{Ipv4Addr, SocketAddrV4};

use anyhow::{Context, Result, bail};

use crate::wire::pattern;

/// What the backend does with a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DatagramKind {
    /// Sends it back unchanged.
    Echo,
    /// Verifies and counts it.
    Stream,
    /// Replies with the source that it came from.
    SourceQuery,
    /// Resets the tally, and replies with the empty one.
    ResetTally,
    /// Replies with the tally.
    TallyQuery,
}

/// The tag that precedes the pattern: [`TAG_BYTES`] bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tag {
    pub(crate) kind: DatagramKind,
    /// The client's serial number.
    pub(crate) serial: u32,
    /// The datagram's sequence number, for each client.
    pub(crate) sequence: u64,
}

impl DatagramKind {
    /// Reads the kind from a datagram. None if it is not a datagram of the benchmark, or was damaged.
    pub(crate) fn parse(datagram: &[u8]) -> Option<Self> {
        let word = datagram.first_chunk()?;
        ALL_KINDS.into_iter().find(|kind| kind.word() == word)
    }

    fn word(self) -> &'static [u8; 4] {
        match self {
            Self::Echo => b"ECHO",
            Self::Stream => b"STRM",
            Self::SourceQuery => b"SRC?",
            Self::ResetTally => b"ZERO",
            Self::TallyQuery => b"TELL",
        }
    }
}

impl Tag {
    /// Fills all of `datagram`, which has at least [`TAG_BYTES`] bytes.
    pub(crate) fn write(self, datagram: &mut [u8]) {
        let (tag, rest) = datagram.split_at_mut(TAG_BYTES);
        tag[..4].copy_from_slice(self.kind.word());
        tag[4..8].copy_from_slice(&self.serial.to_be_bytes());
        tag[8..].copy_from_slice(&self.sequence.to_be_bytes());
        rest.copy_from_slice(pattern::bytes_at(self.position(rest.len()), rest.len()));
    }

    /// Reads the tag alone; what follows it is not verified.
    pub(crate) fn read(datagram: &[u8]) -> Result<Self> {
        let kind = DatagramKind::parse(datagram).with_context(|| {
            let start = &datagram[..datagram.len().min(TAG_BYTES)];
            format!("{} B that were not sent: {start:02x?}", datagram.len())
        })?;
        let Some(Ok([_, _, _, _, s0, s1, s2, s3, sequence @ ..])) =
            datagram.get(..TAG_BYTES).map(<[u8; TAG_BYTES]>::try_from)
        else {
            bail!("{} B are too few for a tag", datagram.len());
        };
        Ok(Self {
            kind,
            serial: u32::from_be_bytes([s0, s1, s2, s3]),
            sequence: u64::from_be_bytes(sequence),
        })
    }

    /// Compares a whole datagram with what was sent under its tag.
    pub(crate) fn verify(datagram: &[u8], length: usize) -> Result<Self> {
        let tag = Self::read(datagram)?;
        if datagram.len() != length {
            bail!("{length} B were sent, {} came", datagram.len());
        }
        let rest = datagram.get(TAG_BYTES..).unwrap_or_default();
        pattern::verify(tag.position(rest.len()), rest)
            .with_context(|| format!("datagram {} of client {}", tag.sequence, tag.serial))?;
        Ok(tag)
    }

    /// The position in the pattern at which the bytes after the tag begin. Two datagrams of one client have the same bytes
    /// only if their sequence numbers differ by a multiple of the period. The period is an odd prime, and a flipped bit changes
    /// the number by a power of two, which is never such a multiple.
    fn position(self, length: usize) -> u64 {
        let step = self.sequence % pattern::PERIOD;
        pattern::start_of(u64::from(self.serial)) + step * length as u64
    }
}

/// Writes the reply to [`DatagramKind::SourceQuery`]: address and port in network order, after the query's tag.
pub(crate) fn write_peer(datagram: &mut [u8], peer: SocketAddrV4) {
    if let Some(field) = datagram.get_mut(TAG_BYTES..TAG_BYTES + 6) {
        field[..4].copy_from_slice(&peer.ip().octets());
        field[4..].copy_from_slice(&peer.port().to_be_bytes());
    }
}

/// Reads what [`write_peer`] wrote. None if the datagram is too short.
pub(crate) fn read_peer(datagram: &[u8]) -> Option<SocketAddrV4> {
    let [a, b, c, d, port @ ..] = *datagram.get(TAG_BYTES..)?.first_chunk::<6>()?;
    let address = Ipv4Addr::new(a, b, c, d);
    Some(SocketAddrV4::new(address, u16::from_be_bytes(port)))
}

/// The length of a tag: four letters, the client's number, the datagram's number.
pub(crate) const TAG_BYTES: usize = 16;

/// The longest datagram of any workload, its header included.
pub(crate) const MAX_BYTES: usize = 2048;

const ALL_KINDS: [DatagramKind; 5] = [
    DatagramKind::Echo,
    DatagramKind::Stream,
    DatagramKind::SourceQuery,
    DatagramKind::ResetTally,
    DatagramKind::TallyQuery,
];

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: Tag = Tag {
        kind: DatagramKind::Stream,
        serial: 7,
        sequence: 1 << 40,
    };

    #[test]
    fn written_tag_reads_back() {
        for kind in ALL_KINDS {
            let tag = Tag { kind, ..SAMPLE };
            let mut datagram = [0; 64];
            tag.write(&mut datagram);
            assert_eq!(Tag::verify(&datagram, 64).unwrap(), tag);
        }
    }

    #[test]
    fn every_flipped_bit_is_detected() {
        let mut datagram = [0; 64];
        SAMPLE.write(&mut datagram);
        for bit in 0..8 * datagram.len() {
            let mut spoiled = datagram;
            spoiled[bit / 8] ^= 1 << (bit % 8);
            assert!(
                Tag::verify(&spoiled, 64).is_err(),
                "bit {bit} went unnoticed"
            );
        }
    }

    #[test]
    fn every_shorter_length_is_detected() {
        let mut datagram = [0; 64];
        SAMPLE.write(&mut datagram);
        for length in 0..64 {
            assert!(Tag::verify(&datagram[..length], 64).is_err(), "{length} B");
        }
    }

    #[test]
    fn written_peer_reads_back() {
        let peer = "10.1.2.3:4567".parse().unwrap();
        let mut datagram = [0; 64];
        write_peer(&mut datagram, peer);
        assert_eq!(read_peer(&datagram), Some(peer));
        assert_eq!(read_peer(&datagram[..TAG_BYTES + 5]), None);
    }
}
