//! Parsing: detects the version of a header, and whether it is complete.

mod guess;
mod parsed;
pub(crate) mod v1;
pub(crate) mod v2;

use crate::invalid::Invalid;

pub use guess::{ProtocolGuess, guess_protocol};
pub use parsed::{Carrier, Parsed};

/// Reads the header at the start of `bytes`.
///
/// `bytes` starts with the first byte of the connection or datagram, and may go on beyond the header. The result depends
/// on the bytes alone, never on how they arrived: while it is [`Parsed::NeedMore`], call `parse` again with more bytes. Any
/// other result is final.
///
/// The caller limits what it buffers: compare [`Parsed::NeedMore`] and [`Header::len`](crate::Header::len) with the largest
/// header it accepts. Section 2.1 stops at [`V1_MAX_LEN`](crate::V1_MAX_LEN), section 2.2 at
/// [`V2_MAX_LEN`](crate::V2_MAX_LEN).
///
/// # Errors
///
/// [`Invalid`], as soon as no further bytes could make the header valid.
pub fn parse(bytes: &[u8], carrier: Carrier) -> Result<Parsed<'_>, Invalid> {
    let parsed = match (bytes.first(), carrier) {
        (Some(&FIRST_OF_V2), _) => v2::parse(bytes)?,
        (Some(&FIRST_OF_V1), Carrier::Stream) => v1::parse(bytes)?,
        (Some(&FIRST_OF_V1), Carrier::Datagram) if bytes.starts_with(v1::KEYWORD) => {
            return Err(Invalid::V1OnDatagram);
        }
        (Some(_), _) => return Err(Invalid::NoHeader { offset: 0 }),
        (None, _) => Parsed::NeedMore(v1::MIN_LEN),
    };
    match (parsed, carrier) {
        (Parsed::NeedMore(need), Carrier::Datagram) => Err(Invalid::Truncated {
            have: bytes.len(),
            need,
        }),
        (parsed, _) => Ok(parsed),
    }
}

/// Whether `bytes` begin with the signature of a header of either version. The rest of the header may be incomplete or invalid.
pub fn begins_like_header(bytes: &[u8]) -> bool {
    bytes.starts_with(&v2::SIGNATURE) || begins_like_v1(bytes)
}

/// Whether `bytes` begin with the signature of a version 1 header.
pub fn begins_like_v1(bytes: &[u8]) -> bool {
    bytes.starts_with(v1::KEYWORD)
}

const FIRST_OF_V1: u8 = b'P';
const FIRST_OF_V2: u8 = b'\r';
