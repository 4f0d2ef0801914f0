//! Version 1: one line of text (section 2.1).
//!
//! A state machine reads the line byte by byte against its grammar: the standard
//! library's address parsers need a complete `str`, and would detect a wrong byte only at the end of the line.

use core::net::{IpAddr, Ipv4Addr, SocketAddr};

use super::parsed::Parsed;
use crate::deviation::Deviation;
use crate::header::{Command, Endpoints, Header, Transport, Version};
use crate::invalid::{Invalid, V1Field};
use crate::tlv::Tlvs;

mod v6;

/// The start of each line.
pub(crate) const KEYWORD: &[u8] = b"PROXY ";

/// The longest line, including CRLF: no further byte is ever examined (section 2.1).
pub const MAX_LEN: usize = 107;

/// The shortest line: `PROXY UNKNOWN` and CRLF. A larger value would make a reader that trusts
/// [`Parsed::NeedMore`] wait for bytes that never arrive.
pub(crate) const MIN_LEN: usize = 15;

pub(crate) fn parse(bytes: &[u8]) -> Result<Parsed<'_>, Invalid> {
    let mut line = Line::new(bytes);
    match line.read() {
        Ok((command, endpoints)) => Ok(Parsed::Complete(Header {
            version: Version::V1,
            command,
            endpoints,
            tlvs: Tlvs::default(),
            len: line.at,
            line_deviation: line.deviation,
        })),
        Err(Stop::Short) => line.want_more(),
        Err(Stop::Wrong(invalid)) => Err(invalid),
    }
}

/// Parses an IPv4 or IPv6 address in the syntax of a version 1 line. For libraries without the standard library, which
/// must be free of panics: the optimiser can't prove that of the standard library's parser.
///
/// ```
/// assert_eq!(peername_proto::address(b"192.0.2.1"), Some([192, 0, 2, 1].into()));
/// assert_eq!(peername_proto::address(b"192.0.2.1 "), None);
/// ```
pub fn address(text: &[u8]) -> Option<IpAddr> {
    let mut field = [b' '; LONGEST_ADDRESS + 1];
    let (field, _) = field.split_at_mut_checked(text.len().saturating_add(1))?;
    for (to, from) in field.iter_mut().zip(text) {
        *to = *from;
    }
    let mut line = Line::new(field);
    let address = match text.contains(&b':') {
        true => line.v6().ok()?.into(),
        false => line.v4().ok()?.into(),
    };
    (line.at == field.len()).then_some(address)
}

/// With a dotted tail (INET6_ADDRSTRLEN, less its NUL).
const LONGEST_ADDRESS: usize = 45;

/// Why parsing stopped early.
enum Stop {
    /// The bytes are valid, but the line is incomplete.
    Short,
    Wrong(Invalid),
}

/// The line, and the parser's position and state.
struct Line<'a> {
    bytes: &'a [u8],
    at: usize,
    field: V1Field,
    /// What deviates from the grammar, and is accepted.
    deviation: Option<Deviation>,
}

impl<'a> Line<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        Self {
            bytes,
            at: 0,
            field: V1Field::Protocol,
            deviation: None,
        }
    }

    fn read(&mut self) -> Result<(Command, Endpoints<'a>), Stop> {
        for &octet in KEYWORD {
            if self.next()? != octet {
                let offset = self.last();
                return Err(Stop::Wrong(Invalid::NoHeader { offset }));
            }
        }
        match self.next()? {
            b'T' => self.tcp(),
            b'U' => self.unknown(),
            _ => Err(self.wrong()),
        }
    }

    fn tcp(&mut self) -> Result<(Command, Endpoints<'a>), Stop> {
        self.literal(b"CP")?;
        let keyword_v6 = match self.next()? {
            b'4' => false,
            b'6' => true,
            _ => return Err(self.wrong()),
        };
        self.literal(b" ")?;
        self.field = V1Field::Source;
        let source = self.address()?;
        self.field = V1Field::Destination;
        let destination = self.address()?;
        self.field = V1Field::SourcePort;
        let source_port = self.decimal(b" ")?;
        self.field = V1Field::DestinationPort;
        let destination_port = self.decimal(b"\r ")?;
        if self.bytes.get(self.last()) == Some(&b' ') {
            self.literal(b"\r")?;
            self.deviation = Some(Deviation::TrailingSpace);
        }
        if (source.is_ipv6(), destination.is_ipv6()) != (keyword_v6, keyword_v6) {
            self.deviation = Some(Deviation::Families {
                keyword_v6,
                source_v6: source.is_ipv6(),
                destination_v6: destination.is_ipv6(),
            });
        }
        self.line_feed()?;
        let endpoints = Endpoints::Inet {
            transport: Transport::Stream,
            source: SocketAddr::new(source, source_port),
            destination: SocketAddr::new(destination, destination_port),
        };
        Ok((Command::Proxy, endpoints))
    }

    /// Skips the rest of the line, which the receiver must ignore; a lone CR or LF does not end the line.
    fn unknown(&mut self) -> Result<(Command, Endpoints<'a>), Stop> {
        self.literal(b"NKNOWN")?;
        match self.next()? {
            b'\r' => {}
            b' ' => self.skip_to_cr()?,
            _ => return Err(self.wrong()),
        }
        self.line_feed()?;
        Ok((Command::Unknown, Endpoints::Real))
    }

    fn skip_to_cr(&mut self) -> Result<(), Stop> {
        self.field = V1Field::Ignored;
        loop {
            match self.next()? {
                b'\r' => return Ok(()),
                b'\n' => return Err(self.wrong()),
                _ => {}
            }
        }
    }

    fn line_feed(&mut self) -> Result<(), Stop> {
        self.field = V1Field::LineEnd;
        self.literal(b"\n")
    }

    /// An address of either family and the space after it: an address says what it is, whatever the keyword. A dot after its
    /// first digits is IPv4's; before that byte has arrived, the digits are those of IPv6, which can have more of them.
    fn address(&mut self) -> Result<IpAddr, Stop> {
        let mut start = self.bytes.iter().skip(self.at).take(4);
        match start.find(|octet| !octet.is_ascii_hexdigit()) {
            Some(b'.') => self.v4().map(IpAddr::V4),
            _ => self.v6().map(IpAddr::V6),
        }
    }

    /// An address and the space after it.
    fn v4(&mut self) -> Result<Ipv4Addr, Stop> {
        let first = self.decimal(b".")?;
        self.v4_after(first)
    }

    /// An address and the space after it, when its first number and dot are already read.
    fn v4_after(&mut self, first: u8) -> Result<Ipv4Addr, Stop> {
        let second = self.decimal(b".")?;
        let third = self.decimal(b".")?;
        let fourth = self.decimal(b" ")?;
        Ok(Ipv4Addr::new(first, second, third, fourth))
    }

    /// A number that fits `N`, without sign or leading zero, and the byte that ends it, one of `ends`.
    fn decimal<N: TryFrom<u32>>(&mut self, ends: &[u8]) -> Result<N, Stop> {
        let first = self.next()?;
        let mut value = digit(first, 10).ok_or_else(|| self.wrong())?;
        loop {
            let octet = self.next()?;
            if ends.contains(&octet) {
                return N::try_from(value).map_err(|_| self.wrong());
            }
            let digit = digit(octet, 10)
                .filter(|_| value != 0)
                .ok_or_else(|| self.wrong())?;
            // Fails at the first digit that makes the number too large, so the value never nears 2^32.
            value = value.saturating_mul(10).saturating_add(digit);
            if N::try_from(value).is_err() {
                return Err(self.wrong());
            }
        }
    }

    fn literal(&mut self, expected: &[u8]) -> Result<(), Stop> {
        for &octet in expected {
            if self.next()? != octet {
                return Err(self.wrong());
            }
        }
        Ok(())
    }

    /// The next byte, if it is available and the line could still end within the maximum length.
    fn next(&mut self) -> Result<u8, Stop> {
        let &octet = self
            .bytes
            .get(self.at)
            .filter(|_| self.least() <= MAX_LEN)
            .ok_or(Stop::Short)?;
        self.at = self.at.saturating_add(1);
        Ok(octet)
    }

    /// Length of the shortest line that starts with the bytes read.
    fn least(&self) -> usize {
        let line_end = if self.field == V1Field::LineEnd { 1 } else { 2 };
        self.at.saturating_add(line_end).max(MIN_LEN)
    }

    /// The byte just read is invalid at its position.
    fn wrong(&self) -> Stop {
        Stop::Wrong(Invalid::V1Line {
            field: self.field,
            offset: self.last(),
        })
    }

    fn last(&self) -> usize {
        self.at.saturating_sub(1)
    }

    /// Requests more bytes, unless the line would exceed the maximum length.
    fn want_more(&self) -> Result<Parsed<'a>, Invalid> {
        match self.least() {
            least if least > MAX_LEN => Err(Invalid::V1TooLong),
            least => Ok(Parsed::NeedMore(least)),
        }
    }
}

fn digit(octet: u8, radix: u32) -> Option<u32> {
    char::from(octet).to_digit(radix)
}

#[cfg(test)]
mod tests;
