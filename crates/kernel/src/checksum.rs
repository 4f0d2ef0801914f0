//! Incremental Internet checksums (RFC 1071, RFC 1624): the part that is known before a datagram arrives.
//!
//! A rewritten datagram's checksum is the old one plus a delta, and the delta is the same for all datagrams of a
//! flow: it covers addresses, ports, the header that is stripped or prepended, and the change of the lengths.
//! Words are in host byte order, as in the kernel's program: one's complement sums are independent of byte order.

use crate::address_pair::AddressPair;

/// A one's complement sum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sum(u64);

impl Sum {
    /// Adds bytes as 16-bit words; an odd last byte is padded with zero.
    pub(crate) fn add(mut self, bytes: &[u8]) -> Self {
        self.0 += words(bytes).map(u64::from).sum::<u64>();
        self
    }

    /// Subtracts bytes: adds the complement of each 16-bit word.
    pub(crate) fn subtract(mut self, bytes: &[u8]) -> Self {
        self.0 += words(bytes).map(|word| u64::from(!word)).sum::<u64>();
        self
    }

    /// Adds a number in network byte order.
    pub(crate) fn add_number(self, number: u16) -> Self {
        self.add(&number.to_be_bytes())
    }

    /// Subtracts a number in network byte order.
    pub(crate) fn subtract_number(self, number: u16) -> Self {
        self.subtract(&number.to_be_bytes())
    }

    /// The sum folded to 16 bits.
    pub(crate) fn folded(self) -> u16 {
        let mut sum = self.0;
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum as u16
    }
}

/// The deltas that a rewrite adds to a packet's checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChecksumDeltas {
    /// The delta of the IPv4 header checksum and of the UDP pseudo header: both sum the addresses and one length.
    pub(crate) addresses: u16,
    /// The delta of the UDP checksum.
    pub(crate) udp: u16,
}

/// The change of the payload by a rewrite.
pub(crate) enum HeaderChange<'a> {
    /// This header is stripped.
    Stripped(&'a [u8]),
    /// This header is prepended.
    Prepended(&'a [u8]),
}

impl ChecksumDeltas {
    pub(crate) fn new(old: &AddressPair, new: &AddressPair, change: HeaderChange<'_>) -> Self {
        let addresses = Sum::default()
            .add(&new.ip_bytes())
            .subtract(&old.ip_bytes());
        let ports = |sum: Sum| {
            sum.add_number(new.from.port())
                .add_number(new.to.port())
                .subtract_number(old.from.port())
                .subtract_number(old.to.port())
        };
        // The length occurs once in the IP header and once in the UDP pseudo header, and once more in the UDP header.
        let (addresses, udp) = match change {
            HeaderChange::Stripped(header) => {
                let len = header.len() as u16;
                let once = addresses.subtract_number(len);
                (once, ports(once.subtract_number(len)).subtract(header))
            }
            HeaderChange::Prepended(header) => {
                let len = header.len() as u16;
                let once = addresses.add_number(len);
                (once, ports(once.add_number(len)).add(header))
            }
        };
        Self {
            addresses: addresses.folded(),
            udp: udp.folded(),
        }
    }
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u16> {
    bytes.chunks(2).map(|pair| match *pair {
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
    fn sum_is_that_of_the_example_in_the_rfc() {
        let sum = Sum::default().add(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]);
        assert_eq!(sum.folded().to_ne_bytes(), [0xdd, 0xf2]);
    }

    #[test]
    fn subtracting_what_was_added_restores_the_sum() {
        let (payload, header) = (&[9, 8, 7, 6, 5][..], &[0xff, 0xfe, 0, 3][..]);
        let sum = Sum::default().add(payload);
        let with_header = Sum::default().add(&[header, payload].concat());
        assert_eq!(with_header.subtract(header).folded(), sum.folded());
        assert_eq!(
            sum.add_number(700).subtract_number(700).folded(),
            sum.folded()
        );
    }
}
