//! The fields that follow the addresses of version 2 (section 2.2).

use crate::crc;
use crate::invalid::Invalid;
use crate::ssl::Ssl;
use crate::vendor::Vendor;

pub mod kind;

/// One field: a type, and a value whose meaning the type gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tlv<'a> {
    /// The type, see [`kind`].
    pub kind: u8,
    /// The value as sent. Only framing and the limits of section 2.2 are checked: text may hold any octet.
    pub value: &'a [u8],
}

impl<'a> Tlv<'a> {
    /// The type's name in the specification, without its `PP2_TYPE_`; a vendor's name if the value
    /// has that vendor's form; else the range's, such as `CUSTOM` or `UNASSIGNED`.
    pub fn name(self) -> &'static str {
        Vendor::read(self).map_or_else(|| kind::name(self.kind), Vendor::name)
    }

    /// Takes the first field off a block. `None` if it reaches beyond it.
    pub(crate) fn split(block: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let ([kind, high, low], rest) = block.split_first_chunk()?;
        let length = u16::from_be_bytes([*high, *low]);
        let (value, rest) = rest.split_at_checked(length.into())?;
        Some((Self { kind: *kind, value }, rest))
    }

    /// What a type asks of its value alone. `offset` is where the field starts, for the error.
    pub(crate) fn check(self, offset: usize) -> Result<(), Invalid> {
        let length = self.value.len();
        match self.kind {
            kind::UNIQUE_ID if length > kind::UNIQUE_ID_MAX => {
                Err(Invalid::UniqueIdLength { offset, length })
            }
            kind::SSL if Ssl::read(self.value).is_none() => Err(Invalid::Ssl { offset }),
            _ => Ok(()),
        }
    }
}

/// A block of fields, in the order they were sent, known to be well framed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tlvs<'a> {
    block: &'a [u8],
}

impl<'a> Tlvs<'a> {
    /// All fields, NOOP and CRC32C included.
    pub fn iter(self) -> Iter<'a> {
        Iter { rest: self.block }
    }

    /// The value of the first field of this type: the specification doesn't regulate repetition.
    pub fn get(self, kind: u8) -> Option<&'a [u8]> {
        self.iter()
            .find(|tlv| tlv.kind == kind)
            .map(|tlv| tlv.value)
    }

    /// The TLS facts about the client's connection, if it was told.
    pub fn ssl(self) -> Option<Ssl<'a>> {
        self.get(kind::SSL).and_then(Ssl::read)
    }

    /// Whether there is none.
    pub fn is_empty(self) -> bool {
        self.block.is_empty()
    }

    /// The fields as sent.
    pub fn as_bytes(self) -> &'a [u8] {
        self.block
    }

    /// A block that is made of whole fields, or `None`.
    pub(crate) fn framed(block: &'a [u8]) -> Option<Self> {
        let mut rest = block;
        while !rest.is_empty() {
            (_, rest) = Tlv::split(rest)?;
        }
        Some(Self { block })
    }

    /// The fields in `block`, which ends a whole `header`: framing, limits, checksum.
    pub(crate) fn check(header: &'a [u8], block: &'a [u8]) -> Result<Self, Invalid> {
        let mut rest = block;
        let mut checksum = None;
        while !rest.is_empty() {
            let offset = header.len().saturating_sub(rest.len());
            let (tlv, after) = Tlv::split(rest).ok_or(Invalid::TlvOverrun { offset })?;
            tlv.check(offset)?;
            if tlv.kind == kind::CRC32C && checksum.replace((tlv.value, offset)).is_some() {
                return Err(Invalid::ChecksumTwice { offset });
            }
            rest = after;
        }
        if let Some((value, offset)) = checksum {
            crc::verify(header, value, offset)?;
        }
        Ok(Self { block })
    }
}

impl<'a> IntoIterator for Tlvs<'a> {
    type Item = Tlv<'a>;
    type IntoIter = Iter<'a>;

    fn into_iter(self) -> Iter<'a> {
        self.iter()
    }
}

/// Goes through a block of fields.
#[derive(Clone, Debug)]
pub struct Iter<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Iter<'a> {
    type Item = Tlv<'a>;

    fn next(&mut self) -> Option<Tlv<'a>> {
        let (tlv, rest) = Tlv::split(self.rest)?;
        self.rest = rest;
        Some(tlv)
    }
}
