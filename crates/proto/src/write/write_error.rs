//! The errors of writing a header.

use thiserror::Error;

use crate::invalid::Invalid;

/// The reason why a header can't be written, always a mistake of the caller. Nothing was appended to the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The length field has 16 bits.
    #[error(
        "the addresses and TLVs take {0} bytes, more than the 65535 of section 2.2; leave some TLV out"
    )]
    TooLong(usize),
    /// Receivers refuse such a value.
    #[error("TLV value: {0}")]
    Value(#[from] Invalid),
    /// A checksum is computed, not given.
    #[error("CRC32C can't be given as a TLV; ask for it to be computed")]
    Checksum,
}
