//! Internet checksums (RFC 1071), as far as they are known before a datagram comes.
//!
//! A rewritten datagram's sum is the old one and a difference, and the difference is the same for all datagrams of a
//! session: addresses, ports, the header that is taken off or put in front, and by how much the lengths change.
//! Words are taken in the host's byte order, as the program in the kernel does; one's complement sums don't mind.

/// A one's complement sum that can be added to and subtracted from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sum(u64);

impl Sum {
    /// Adds octets as words; an odd one at the end as if a zero followed.
    pub(crate) fn plus(mut self, octets: &[u8]) -> Self {
        self.0 += words(octets).map(u64::from).sum::<u64>();
        self
    }

    /// Adds the complements of words.
    pub(crate) fn minus(mut self, octets: &[u8]) -> Self {
        self.0 += words(octets).map(|word| u64::from(!word)).sum::<u64>();
        self
    }

    /// Adds a number as it stands in a packet.
    pub(crate) fn plus_number(self, number: u16) -> Self {
        self.plus(&number.to_be_bytes())
    }

    /// Subtracts a number as it stands in a packet.
    pub(crate) fn minus_number(self, number: u16) -> Self {
        self.minus(&number.to_be_bytes())
    }

    /// The sum in 16 bits.
    pub(crate) fn folded(self) -> u16 {
        let mut sum = self.0;
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum as u16
    }
}

fn words(octets: &[u8]) -> impl Iterator<Item = u16> {
    octets.chunks(2).map(|pair| match *pair {
        [a, b] => u16::from_ne_bytes([a, b]),
        [a] => u16::from_ne_bytes([a, 0]),
        _ => 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of RFC 1071, section 3.
    #[test]
    fn the_sum_of_the_rfc() {
        let sum = Sum::default().plus(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]);
        assert_eq!(sum.folded().to_ne_bytes(), [0xdd, 0xf2]);
    }

    #[test]
    fn what_is_taken_away_again_changes_nothing() {
        let of = |octets: &[u8]| Sum::default().plus(octets);
        let (rest, header) = (&[9, 8, 7, 6, 5][..], &[0xff, 0xfe, 0, 3][..]);
        let whole = of(&[header, rest].concat());
        assert_eq!(whole.minus(header).folded(), of(rest).folded());
        assert_eq!(
            of(rest).plus_number(700).minus_number(700).folded(),
            of(rest).folded()
        );
    }
}
