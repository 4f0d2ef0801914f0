//! IPv6 addresses of a version 1 line, judged octet by octet.
//!
//! The grammar is that of RFC 4291, section 2.2: groups of up to four digits, at most one `::`, which
//! stands for at least one group. Section 2.1 of the protocol leaves out the dotted tail
//! (`::ffff:192.0.2.1`), but `inet_ntop(3)` writes it and so every sender does: it is read too.

use std::net::Ipv6Addr;

use super::{Line, Stop, digit};

impl Line<'_> {
    /// An address and the space after it.
    pub(super) fn v6(&mut self) -> Result<Ipv6Addr, Stop> {
        let mut groups = Groups::default();
        let mut octet = self.next()?;
        if octet == b':' {
            self.literal(b":")?;
            groups.gap = Some(0);
            octet = self.next()?;
        }
        while !(octet == b' ' && groups.ends_in_gap()) {
            let group = self.group(octet, groups)?;
            match group.end {
                b'.' => {
                    let first = group.as_decimal.filter(|_| groups.room() >= 2);
                    let tail = self.v4_after(first.ok_or_else(|| self.wrong())?)?;
                    let [a, b, c, d] = tail.octets();
                    groups.push(u16::from_be_bytes([a, b]));
                    groups.push(u16::from_be_bytes([c, d]));
                    break;
                }
                b' ' => {
                    groups.push(group.value);
                    break;
                }
                _ => groups.push(group.value),
            }
            octet = self.after_colon(&mut groups)?;
        }
        groups.address().ok_or_else(|| self.wrong())
    }

    /// A colon was read: is it `::`, and may anything follow? Gives the octet after it.
    fn after_colon(&mut self, groups: &mut Groups) -> Result<u8, Stop> {
        if groups.room() == 0 {
            return Err(self.wrong());
        }
        let octet = self.next()?;
        if octet != b':' {
            return Ok(octet);
        }
        if groups.gap.is_some() {
            return Err(self.wrong());
        }
        groups.gap = Some(groups.len);
        self.next()
    }

    /// One to four digits, the first already read, and the octet that ends them.
    fn group(&mut self, first: u8, before: Groups) -> Result<Group, Stop> {
        if before.room() == 0 {
            return Err(self.wrong());
        }
        let mut value = 0_u16;
        let mut decimal = Some(0_u16);
        let mut octet = first;
        for nth in 0..=4 {
            let Some(digit) = digit(octet, 16).and_then(|d| u16::try_from(d).ok()) else {
                let ends = nth > 0 && matches!(octet, b':' | b'.' | b' ');
                let as_decimal = decimal.and_then(|value| u8::try_from(value).ok());
                return if ends {
                    Ok(Group {
                        value,
                        as_decimal,
                        end: octet,
                    })
                } else {
                    Err(self.wrong())
                };
            };
            if nth == 4 {
                break;
            }
            decimal = decimal
                .filter(|&value| digit < 10 && (nth == 0 || value != 0))
                .map(|value| value.saturating_mul(10).saturating_add(digit));
            value = value << 4 | digit;
            octet = self.next()?;
        }
        Err(self.wrong())
    }
}

struct Group {
    value: u16,
    /// The same digits as a part of a dotted tail, if they can be one.
    as_decimal: Option<u8>,
    end: u8,
}

/// The groups read so far.
#[derive(Clone, Copy, Default)]
struct Groups {
    values: [u16; 8],
    len: usize,
    /// How many groups were read before `::`.
    gap: Option<usize>,
}

impl Groups {
    /// How many groups may still come; `::` stands for at least one.
    fn room(&self) -> usize {
        let most = if self.gap.is_some() { 7 } else { 8_usize };
        most.saturating_sub(self.len)
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

    fn address(mut self) -> Option<Ipv6Addr> {
        if let Some(gap) = self.gap {
            // The groups behind the gap move to the end; zeroes take their place.
            self.values
                .get_mut(gap..)?
                .rotate_right(8_usize.checked_sub(self.len)?);
        } else if self.len != 8 {
            return None;
        }
        Some(Ipv6Addr::from(self.values))
    }
}
