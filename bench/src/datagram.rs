//! What the UDP workloads send: a tag that says whose datagram it is and which, then the pattern.
//!
//! On a connection the position says what must come next. A datagram may be lost, so it has to say
//! itself what it is; the rest of it depends on that, and a flipped tag does not go unnoticed.

use std::net::{Ipv4Addr, SocketAddrV4};

use anyhow::{Context, Result, bail};

use crate::pattern;

/// What the backend is to do with a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Send it back as it is.
    Echo,
    /// Verify it and count it.
    Stream,
    /// Say from which address it came.
    Who,
    /// Forget what was counted, and say what is counted now.
    Begin,
    /// Say what was counted.
    Report,
}

/// What precedes the pattern: [`TAG`] bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tag {
    pub(crate) kind: Kind,
    /// The client's number.
    pub(crate) serial: u32,
    /// The datagram's number, counted by its client.
    pub(crate) sequence: u64,
}

impl Kind {
    /// None if the datagram is not of ours, or not any more.
    pub(crate) fn of(datagram: &[u8]) -> Option<Self> {
        let word = datagram.first_chunk()?;
        KINDS.into_iter().find(|kind| kind.word() == word)
    }

    fn word(self) -> &'static [u8; 4] {
        match self {
            Self::Echo => b"ECHO",
            Self::Stream => b"STRM",
            Self::Who => b"WHO?",
            Self::Begin => b"ZERO",
            Self::Report => b"TELL",
        }
    }
}

impl Tag {
    /// Fills `datagram`, at least [`TAG`] bytes, from its first byte to its last.
    pub(crate) fn write(self, datagram: &mut [u8]) {
        let (tag, rest) = datagram.split_at_mut(TAG);
        tag[..4].copy_from_slice(self.kind.word());
        tag[4..8].copy_from_slice(&self.serial.to_be_bytes());
        tag[8..].copy_from_slice(&self.sequence.to_be_bytes());
        rest.copy_from_slice(pattern::at(self.position(rest.len()), rest.len()));
    }

    /// The tag alone; what follows it is not looked at.
    ///
    /// # Errors
    /// There is none.
    pub(crate) fn read(datagram: &[u8]) -> Result<Self> {
        let kind = Kind::of(datagram).with_context(|| {
            let start = &datagram[..datagram.len().min(TAG)];
            format!("{} B that nobody sent: {start:02x?}", datagram.len())
        })?;
        let Some(Ok([_, _, _, _, s0, s1, s2, s3, sequence @ ..])) =
            datagram.get(..TAG).map(<[u8; TAG]>::try_from)
        else {
            bail!("{} B are too few for a tag", datagram.len());
        };
        Ok(Self {
            kind,
            serial: u32::from_be_bytes([s0, s1, s2, s3]),
            sequence: u64::from_be_bytes(sequence),
        })
    }

    /// Compares the whole of a datagram with what was sent under its tag.
    ///
    /// # Errors
    /// There is no tag, another length was sent, or a byte is wrong.
    pub(crate) fn verify(datagram: &[u8], length: usize) -> Result<Self> {
        let tag = Self::read(datagram)?;
        if datagram.len() != length {
            bail!("{length} B were sent, {} came", datagram.len());
        }
        let rest = datagram.get(TAG..).unwrap_or_default();
        pattern::check(tag.position(rest.len()), rest)
            .with_context(|| format!("datagram {} of client {}", tag.sequence, tag.serial))?;
        Ok(tag)
    }

    /// Where in the pattern the rest begins. Two numbers of one client have the same rest only if they
    /// are a multiple of the period apart. It is a prime, so no flipped bit makes that difference.
    fn position(self, length: usize) -> u64 {
        let step = self.sequence % pattern::PERIOD;
        pattern::start(u64::from(self.serial)) + step * length as u64
    }
}

/// The answer to [`Kind::Who`]: address and port in network order, after the question's tag.
pub(crate) fn write_peer(datagram: &mut [u8], peer: SocketAddrV4) {
    if let Some(place) = datagram.get_mut(TAG..TAG + 6) {
        place[..4].copy_from_slice(&peer.ip().octets());
        place[4..].copy_from_slice(&peer.port().to_be_bytes());
    }
}

/// Reads what [`write_peer`] wrote. None if the datagram is too short.
pub(crate) fn read_peer(datagram: &[u8]) -> Option<SocketAddrV4> {
    let [a, b, c, d, port @ ..] = *datagram.get(TAG..)?.first_chunk::<6>()?;
    let address = Ipv4Addr::new(a, b, c, d);
    Some(SocketAddrV4::new(address, u16::from_be_bytes(port)))
}

/// The length of a tag: four letters, the client's number, the datagram's number.
pub(crate) const TAG: usize = 16;

/// No datagram of ours is longer, its header included.
pub(crate) const LONGEST: usize = 2048;

const KINDS: [Kind; 5] = [
    Kind::Echo,
    Kind::Stream,
    Kind::Who,
    Kind::Begin,
    Kind::Report,
];

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: Tag = Tag {
        kind: Kind::Stream,
        serial: 7,
        sequence: 1 << 40,
    };

    #[test]
    fn reads_what_it_wrote() {
        for kind in KINDS {
            let tag = Tag { kind, ..SAMPLE };
            let mut datagram = [0; 64];
            tag.write(&mut datagram);
            assert_eq!(Tag::verify(&datagram, 64).unwrap(), tag);
        }
    }

    #[test]
    fn notices_every_flipped_bit() {
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
    fn notices_every_other_length() {
        let mut datagram = [0; 64];
        SAMPLE.write(&mut datagram);
        for length in 0..64 {
            assert!(Tag::verify(&datagram[..length], 64).is_err(), "{length} B");
        }
    }

    #[test]
    fn peers_come_back() {
        let peer = "10.1.2.3:4567".parse().unwrap();
        let mut datagram = [0; 64];
        write_peer(&mut datagram, peer);
        assert_eq!(read_peer(&datagram), Some(peer));
        assert_eq!(read_peer(&datagram[..TAG + 5]), None);
    }
}
