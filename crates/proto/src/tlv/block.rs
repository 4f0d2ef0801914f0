//! Framing of the TLVs that follow the addresses of version 2 (section 2.2).

/// A TLV: a type, and a value to interpret by the type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tlv<'a> {
    /// The type, see [`kind`](super::kind).
    pub kind: u8,
    /// The value as sent. Only framing and the limits of section 2.2 are checked: text may hold any byte.
    pub value: &'a [u8],
}

impl<'a> Tlv<'a> {
    /// Splits the first TLV off a block. `None` if it overruns the block.
    pub(super) fn split(block: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let ([kind, high, low], rest) = block.split_first_chunk()?;
        let length = u16::from_be_bytes([*high, *low]);
        let (value, rest) = rest.split_at_checked(length.into())?;
        Some((Self { kind: *kind, value }, rest))
    }
}

/// A block of whole TLVs, in the order they were sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tlvs<'a> {
    pub(super) block: &'a [u8],
}

impl<'a> Tlvs<'a> {
    /// All TLVs, including NOOP and CRC32C.
    pub fn iter(self) -> Iter<'a> {
        Iter { rest: self.block }
    }

    /// The value of the first TLV of this type: the specification doesn't regulate repetition.
    pub fn get(self, kind: u8) -> Option<&'a [u8]> {
        self.iter()
            .find(|tlv| tlv.kind == kind)
            .map(|tlv| tlv.value)
    }

    /// Whether the block has no TLV.
    pub fn is_empty(self) -> bool {
        self.block.is_empty()
    }

    /// The block as sent.
    pub fn as_bytes(self) -> &'a [u8] {
        self.block
    }

    /// Checks the framing of a block: `None` if its last TLV is cut off.
    pub(super) fn framed(block: &'a [u8]) -> Option<Self> {
        let mut rest = block;
        while !rest.is_empty() {
            (_, rest) = Tlv::split(rest)?;
        }
        Some(Self { block })
    }
}

impl<'a> IntoIterator for Tlvs<'a> {
    type Item = Tlv<'a>;
    type IntoIter = Iter<'a>;

    fn into_iter(self) -> Iter<'a> {
        self.iter()
    }
}

/// Iterates over a block of TLVs.
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
