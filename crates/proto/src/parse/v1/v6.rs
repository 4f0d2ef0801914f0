//! IPv6 addresses of a version 1 line, parsed byte by byte.
//!
//! The grammar is that of RFC 4291, section 2.2: groups of up to four digits, at most one `::`, which
//! stands for at least one group. Section 2.1 of the protocol leaves out the dotted tail
//! (`::ffff:192.0.2.1`), but `inet_ntop(3)` writes it, and so senders do: it is accepted, too.

use core::net::{Ipv4Addr, Ipv6Addr};

use super::{Line, Stop, digit};

impl Line<'_> {
    /// An IPv6 address and the space after it.
    pub(super) fn v6(&mut self) -> Result<Ipv6Addr, Stop> {
        let mut groups = Groups::default();
        let mut byte = self.next()?;
        if byte == b':' {
            self.literal(b":")?;
            groups.gap = Some(0);
            byte = self.next()?;
        }
        while !(byte == b' ' && groups.ends_in_gap()) {
            let (group, end) = self.group(byte, groups)?;
            if end == b'.' {
                let first = group
                    .as_decimal_byte()
                    .filter(|_| groups.may_have_dotted_tail())
                    .ok_or_else(|| self.wrong_byte())?;
                groups.push_dotted(self.v4_after(first)?);
                break;
            }
            groups.push(group.value);
            if end == b' ' {
                break;
            }
            byte = self.after_colon(&mut groups)?;
        }
        groups.address().ok_or_else(|| self.wrong_byte())
    }

    /// After a colon: handles `::`, and checks that another group may follow. Returns the byte after the colon or colons.
    fn after_colon(&mut self, groups: &mut Groups) -> Result<u8, Stop> {
        if groups.remaining() == 0 {
            return Err(self.wrong_byte());
        }
        let byte = self.next()?;
        if byte != b':' {
            return Ok(byte);
        }
        if groups.gap.is_some() {
            return Err(self.wrong_byte());
        }
        groups.gap = Some(groups.len);
        self.next()
    }

    /// One to four digits, the first already read, and the byte that ends them.
    fn group(&mut self, first: u8, before: Groups) -> Result<(Group, u8), Stop> {
        let first = hex(first)
            .filter(|_| before.remaining() > 0)
            .ok_or_else(|| self.wrong_byte())?;
        let mut group = Group::new(first);
        for _ in 0..4 {
            let byte = self.next()?;
            match (hex(byte), byte) {
                (Some(digit), _) => group.push(digit),
                (None, b':' | b'.' | b' ') => return Ok((group, byte)),
                (None, _) => return Err(self.wrong_byte()),
            }
        }
        Err(self.wrong_byte())
    }
}

fn hex(byte: u8) -> Option<u16> {
    digit(byte, 16).and_then(|digit| u16::try_from(digit).ok())
}

/// A group while it is read: up to four hex digits, or the first number of a dotted tail.
struct Group {
    value: u16,
    /// The same digits as a decimal number, unless they can't be one.
    decimal: Option<u16>,
}

impl Group {
    fn new(digit: u16) -> Self {
        Self {
            value: digit,
            decimal: Some(digit).filter(|&digit| digit < 10),
        }
    }

    fn push(&mut self, digit: u16) {
        self.value = self.value << 4 | digit;
        // No leading zero; saturation affects only a number that is too large already.
        let decimal = self.decimal.filter(|&before| before != 0 && digit < 10);
        self.decimal = decimal.map(|before| before.saturating_mul(10).saturating_add(digit));
    }

    fn as_decimal_byte(&self) -> Option<u8> {
        self.decimal.and_then(|number| u8::try_from(number).ok())
    }
}

/// The groups read so far.
#[derive(Clone, Copy, Default)]
struct Groups {
    values: [u16; 8],
    len: usize,
    /// The number of groups that were read before `::`.
    gap: Option<usize>,
}

impl Groups {
    /// The number of groups that may still follow; `::` stands for at least one group.
    fn remaining(&self) -> usize {
        let max = if self.gap.is_some() { 7 } else { 8_usize };
        max.saturating_sub(self.len)
    }

    /// Whether a dotted tail may follow. It ends the address and stands for two groups.
    fn may_have_dotted_tail(&self) -> bool {
        match self.gap {
            Some(_) => self.remaining() >= 2,
            None => self.remaining() == 2,
        }
    }

    fn ends_in_gap(&self) -> bool {
        self.gap == Some(self.len)
    }

    fn push(&mut self, value: u16) {
        if let Some(free) = self.values.get_mut(self.len) {
            *free = value;
            self.len = self.len.saturating_add(1);
        }
    }

    fn push_dotted(&mut self, tail: Ipv4Addr) {
        let [a, b, c, d] = tail.octets();
        self.push(u16::from_be_bytes([a, b]));
        self.push(u16::from_be_bytes([c, d]));
    }

    fn address(mut self) -> Option<Ipv6Addr> {
        if let Some(gap) = self.gap {
            // The groups behind the gap move to the end; zeroes take their place.
            let behind = self.values.get_mut(gap..)?;
            let zeroes = 8_usize.checked_sub(self.len)?;
            // Always true: the gap is within the length. Stated for the optimiser, which proves the absence of panics.
            if zeroes <= behind.len() {
                behind.rotate_right(zeroes);
            }
        } else if self.len != 8 {
            return None;
        }
        Some(Ipv6Addr::from(self.values))
    }
}
