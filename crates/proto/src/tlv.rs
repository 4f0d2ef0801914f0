//! TLVs, which follow the addresses of a version 2 header (section 2.2), and their validation.

mod block;
pub mod kind;
mod ssl;
mod vendor;

use crate::crc;
use crate::invalid::Invalid;

pub use block::{Iter, Tlv, Tlvs};
pub use ssl::Ssl;
pub use vendor::Vendor;

impl Tlv<'_> {
    /// Checks the value against the limits of its type. The error names `offset`, where the TLV starts.
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

impl<'a> Tlvs<'a> {
    /// Validates the TLVs in `block`, the end of a whole `header`: framing, limits, checksum.
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
