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
        Err(Stop::Short) => line.need_more(),
        Err(Stop::Wrong(invalid)) => Err(invalid),
    }
}

/// Parses an IPv4 or IPv6 address in the syntax of a version 1 line. For libraries that must be free of panics: the optimiser
/// can't prove that of the standard library's parser.
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
    let address = if text.contains(&b':') {
        line.v6().ok()?.into()
    } else {
        line.v4().ok()?.into()
    };
    (line.at == field.len()).then_some(address)
}

/// Bytes of the longest address, IPv6 with a dotted tail (INET6_ADDRSTRLEN, less its NUL).
const LONGEST_ADDRESS: usize = 45;

/// The reason why parsing stopped early.
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
    /// A deviation from the grammar that is accepted.
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
        for &byte in KEYWORD {
            if self.next()? != byte {
                let offset = self.last_offset();
                return Err(Stop::Wrong(Invalid::NoHeader { offset }));
            }
        }
        match self.next()? {
            b'T' => self.tcp(),
            b'U' => self.unknown(),
            _ => Err(self.wrong_byte()),
        }
    }

    fn tcp(&mut self) -> Result<(Command, Endpoints<'a>), Stop> {
        self.literal(b"CP")?;
        let is_keyword_v6 = match self.next()? {
            b'4' => false,
            b'6' => true,
            _ => return Err(self.wrong_byte()),
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
        if self.bytes.get(self.last_offset()) == Some(&b' ') {
            self.literal(b"\r")?;
            self.deviation = Some(Deviation::TrailingSpace);
        }
        if (source.is_ipv6(), destination.is_ipv6()) != (is_keyword_v6, is_keyword_v6) {
            self.deviation = Some(Deviation::Families {
                is_keyword_v6,
                is_source_v6: source.is_ipv6(),
                is_destination_v6: destination.is_ipv6(),
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
            _ => return Err(self.wrong_byte()),
        }
        self.line_feed()?;
        Ok((Command::Unknown, Endpoints::Real))
    }

    fn skip_to_cr(&mut self) -> Result<(), Stop> {
        self.field = V1Field::Ignored;
        loop {
            match self.next()? {
                b'\r' => return Ok(()),
                b'\n' => return Err(self.wrong_byte()),
                _ => {}
            }
        }
    }

    fn line_feed(&mut self) -> Result<(), Stop> {
        self.field = V1Field::LineEnd;
        self.literal(b"\n")
    }

    /// An address of either family, whatever the keyword says, and the space after it. A dot after up to three digits means
    /// IPv4. As long as only digits have arrived, they are read as a group of IPv6, which has up to four.
    fn address(&mut self) -> Result<IpAddr, Stop> {
        let first_non_digit = self
            .bytes
            .iter()
            .skip(self.at)
            .take(4)
            .find(|byte| !byte.is_ascii_hexdigit());
        match first_non_digit {
            Some(b'.') => self.v4().map(IpAddr::V4),
            _ => self.v6().map(IpAddr::V6),
        }
    }

    /// An IPv4 address and the space after it.
    fn v4(&mut self) -> Result<Ipv4Addr, Stop> {
        let first = self.decimal(b".")?;
        self.v4_after(first)
    }

    /// The rest of an IPv4 address whose first number and dot are already read, and the space after it.
    fn v4_after(&mut self, first: u8) -> Result<Ipv4Addr, Stop> {
        let second = self.decimal(b".")?;
        let third = self.decimal(b".")?;
        let fourth = self.decimal(b" ")?;
        Ok(Ipv4Addr::new(first, second, third, fourth))
    }

    /// A number that fits `N`, without sign or leading zero, and the byte that ends it, one of `ends`.
    fn decimal<N: TryFrom<u32>>(&mut self, ends: &[u8]) -> Result<N, Stop> {
        let first = self.next()?;
        let mut value = digit(first, 10).ok_or_else(|| self.wrong_byte())?;
        loop {
            let byte = self.next()?;
            if ends.contains(&byte) {
                return N::try_from(value).map_err(|_| self.wrong_byte());
            }
            let digit = digit(byte, 10)
                .filter(|_| value != 0)
                .ok_or_else(|| self.wrong_byte())?;
            // Fails at the first digit that makes the number too large, so the value never nears 2^32.
            value = value.saturating_mul(10).saturating_add(digit);
            if N::try_from(value).is_err() {
                return Err(self.wrong_byte());
            }
        }
    }

    fn literal(&mut self, expected: &[u8]) -> Result<(), Stop> {
        for &byte in expected {
            if self.next()? != byte {
                return Err(self.wrong_byte());
            }
        }
        Ok(())
    }

    /// The next byte, if it is available and the line could still end within the maximum length.
    fn next(&mut self) -> Result<u8, Stop> {
        let &byte = self
            .bytes
            .get(self.at)
            .filter(|_| self.min_len() <= MAX_LEN)
            .ok_or(Stop::Short)?;
        self.at = self.at.saturating_add(1);
        Ok(byte)
    }

    /// Length of the shortest line that starts with the bytes read so far.
    fn min_len(&self) -> usize {
        let line_end = if self.field == V1Field::LineEnd { 1 } else { 2 };
        self.at.saturating_add(line_end).max(MIN_LEN)
    }

    /// The error that the byte just read is invalid at its position. An LF is reported as a wrong end of the line.
    fn wrong_byte(&self) -> Stop {
        let offset = self.last_offset();
        let field = match self.bytes.get(offset) {
            Some(b'\n') => V1Field::LineEnd,
            _ => self.field,
        };
        Stop::Wrong(Invalid::V1Line { field, offset })
    }

    fn last_offset(&self) -> usize {
        self.at.saturating_sub(1)
    }

    /// Asks for more bytes, unless the line would exceed the maximum length.
    fn need_more(&self) -> Result<Parsed<'a>, Invalid> {
        match self.min_len() {
            len if len > MAX_LEN => Err(Invalid::V1TooLong),
            len => Ok(Parsed::NeedMore(len)),
        }
    }
}

fn digit(byte: u8, radix: u32) -> Option<u32> {
    char::from(byte).to_digit(radix)
}

#[cfg(test)]
mod tests;
