//! Headers without TLVs for a TCP connection: the only headers that are written without an allocator.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::ops::Range;

use crate::parse::v1;
use crate::parse::v2::SIGNATURE;

/// A header with the two endpoints of a relayed TCP connection, and nothing else.
///
/// If the ends differ in family, the IPv4 one is mapped into IPv6, as HAProxy does. Flow and scope of an
/// IPv6 address aren't part of the format.
///
/// ```
/// use peername_proto::PlainHeader;
///
/// let (source, destination) = ("192.0.2.1:1000".parse()?, "198.51.100.1:443".parse()?);
/// let header = PlainHeader::v1(source, destination);
/// assert_eq!(header.as_bytes(), b"PROXY TCP4 192.0.2.1 198.51.100.1 1000 443\r\n");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct PlainHeader {
    bytes: [u8; v1::MAX_LEN],
    len: usize,
}

impl PlainHeader {
    const EMPTY: Self = Self {
        bytes: [0; v1::MAX_LEN],
        len: 0,
    };

    /// Version 1 (section 2.1): a line of at most 104 bytes, its addresses as RFC 5952 has them, but
    /// never with a dotted tail: the protocol's grammar has none, and strict receivers refuse it.
    pub fn v1(source: SocketAddr, destination: SocketAddr) -> Self {
        let mut line = Self::EMPTY;
        match AddressPair::new(source, destination) {
            AddressPair::V4(source, destination) => {
                line.put(b"PROXY TCP4 ");
                line.put_v4(source);
                line.put(b" ");
                line.put_v4(destination);
            }
            AddressPair::V6(source, destination) => {
                line.put(b"PROXY TCP6 ");
                line.put_v6(source);
                line.put(b" ");
                line.put_v6(destination);
            }
        }
        for port in [source.port(), destination.port()] {
            line.put(b" ");
            line.put_number::<10>(port);
        }
        line.put(b"\r\n");
        line
    }

    /// Version 2 (section 2.2): 28 or 52 bytes.
    pub fn v2(source: SocketAddr, destination: SocketAddr) -> Self {
        let mut header = Self::EMPTY;
        header.put(&SIGNATURE);
        match AddressPair::new(source, destination) {
            AddressPair::V4(source, destination) => {
                header.put(&[VERSION | PROXY, INET | STREAM, 0, 12]);
                header.put(&source.octets());
                header.put(&destination.octets());
            }
            AddressPair::V6(source, destination) => {
                header.put(&[VERSION | PROXY, INET6 | STREAM, 0, 36]);
                header.put(&source.octets());
                header.put(&destination.octets());
            }
        }
        header.put(&source.port().to_be_bytes());
        header.put(&destination.port().to_be_bytes());
        header
    }

    /// The header as it is sent.
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }

    /// The addresses and ports of a version 2 header, which follow its fixed part.
    #[cfg(feature = "std")]
    pub(crate) fn address_block(&self) -> &[u8] {
        self.as_bytes()
            .get(crate::parse::v2::FIXED_LEN..)
            .unwrap_or_default()
    }

    fn put(&mut self, bytes: &[u8]) {
        let rest = self.bytes.get_mut(self.len..).unwrap_or_default();
        for (to, from) in rest.iter_mut().zip(bytes) {
            *to = *from;
        }
        self.len = self.len.saturating_add(bytes.len());
    }

    fn put_v4(&mut self, ip: Ipv4Addr) {
        let [first, rest @ ..] = ip.octets();
        self.put_number::<10>(first.into());
        for octet in rest {
            self.put(b".");
            self.put_number::<10>(octet.into());
        }
    }

    fn put_v6(&mut self, ip: Ipv6Addr) {
        let groups = ip.segments();
        let gap = longest_gap(groups);
        for (at, group) in groups.into_iter().enumerate() {
            if gap.contains(&at) {
                if at == gap.start {
                    self.put(b"::");
                }
                continue;
            }
            if at != 0 && at != gap.end {
                self.put(b":");
            }
            self.put_number::<16>(group);
        }
    }

    fn put_number<const RADIX: u16>(&mut self, number: u16) {
        let rest = number.checked_div(RADIX).unwrap_or_default();
        let digit = number.checked_rem(RADIX).unwrap_or_default();
        if rest != 0 {
            self.put_number::<RADIX>(rest);
        }
        let digit = char::from_digit(digit.into(), RADIX.into());
        self.put(&[digit
            .and_then(|digit| u8::try_from(digit).ok())
            .unwrap_or(b'0')]);
    }
}

/// The first of the longest runs of two or more groups of zero (RFC 5952, section 4.2); empty if there
/// is none.
fn longest_gap(groups: [u16; 8]) -> Range<usize> {
    let mut longest = 0..0;
    let mut current = 0..0;
    for (at, group) in groups.into_iter().enumerate() {
        if group != 0 {
            continue;
        }
        let start = if current.end == at { current.start } else { at };
        current = start..at.saturating_add(1);
        if current.len() > longest.len().max(1) {
            longest = current.clone();
        }
    }
    longest
}

/// Both endpoints in one address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AddressPair {
    V4(Ipv4Addr, Ipv4Addr),
    V6(Ipv6Addr, Ipv6Addr),
}

impl AddressPair {
    fn new(source: SocketAddr, destination: SocketAddr) -> Self {
        match (source.ip(), destination.ip()) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => Self::V4(source, destination),
            (source, destination) => Self::V6(to_ipv6(source), to_ipv6(destination)),
        }
    }
}

fn to_ipv6(ip: IpAddr) -> Ipv6Addr {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}

/// Version 2, in the high nibble; the command is in the low one.
pub(super) const VERSION: u8 = 0x20;
pub(super) const PROXY: u8 = 1;
/// Families are in the high nibble; the transport is in the low one.
pub(super) const INET: u8 = 0x10;
pub(super) const INET6: u8 = 0x20;
pub(super) const STREAM: u8 = 1;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Carrier, Parsed, Version, parse};

    proptest! {
        /// The standard library writes addresses by the same RFC, but for the dotted tail.
        #[test]
        fn addresses_are_written_as_by_the_standard_library(mask: u8, groups: [u16; 8]) {
            let mut groups = groups;
            for (at, group) in groups.iter_mut().enumerate() {
                if mask & (1 << at) == 0 {
                    *group = 0;
                }
            }
            let ip = Ipv6Addr::from(groups);
            prop_assume!(ip.to_ipv4_mapped().is_none());
            let end = SocketAddr::new(ip.into(), 65_535);
            let line = PlainHeader::v1(end, end);
            let expected = format!("PROXY TCP6 {ip} {ip} 65535 65535\r\n");
            prop_assert_eq!(line.as_bytes(), expected.as_bytes());
        }

        #[test]
        fn written_headers_parse_to_the_same_endpoints(v4: (Ipv4Addr, u16), other_v4: (Ipv4Addr, u16), v6: (Ipv6Addr, u16)) {
            let [v4, other_v4, v6]: [SocketAddr; 3] = [v4.into(), other_v4.into(), v6.into()];
            for (source, destination) in [(v4, v6), (v6, v4), (v4, other_v4), (v6, v6)] {
                for new in [PlainHeader::v1, PlainHeader::v2] {
                    let header = new(source, destination);
                    let parsed = match parse(header.as_bytes(), Carrier::Stream) {
                        Ok(Parsed::Complete(parsed)) => parsed,
                        other => return Err(TestCaseError::fail(format!("{other:?}"))),
                    };
                    let canonical = |end: SocketAddr| (end.ip().to_canonical(), end.port());
                    prop_assert_eq!(parsed.source().map(canonical), Some(canonical(source)));
                    prop_assert_eq!(parsed.destination().map(canonical), Some(canonical(destination)));
                    prop_assert_eq!(parsed.len, header.as_bytes().len());
                }
            }
        }
    }

    #[test]
    fn longest_line_has_104_bytes() {
        let long = SocketAddr::new(Ipv6Addr::from([0xffff; 8]).into(), 65_535);
        let line = PlainHeader::v1(long, long);
        assert_eq!(line.as_bytes().len(), 104);
        assert!(matches!(
            parse(line.as_bytes(), Carrier::Stream),
            Ok(Parsed::Complete(header)) if header.version == Version::V1
        ));
    }
}
