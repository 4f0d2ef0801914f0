//! The way in: which version is this, and is it all there?

use crate::header::Header;
use crate::invalid::Invalid;
use crate::{v1, v2};

/// Reads the header at the start of `bytes`.
///
/// `bytes` starts with the connection's first octet, or the datagram's; more than the header may be
/// there. The result depends on the bytes alone, never on how they arrived: ask again with more of them
/// for as long as the answer is [`Parsed::NeedMore`]. Any answer but that is final.
///
/// The caller bounds what it buffers: compare [`Parsed::NeedMore`] and [`Header::len`] with the largest
/// header it will take. Section 2.1 stops at [`V1_MAX_LEN`](crate::V1_MAX_LEN), section 2.2 at
/// [`V2_MAX_LEN`](crate::V2_MAX_LEN).
///
/// # Errors
///
/// [`Invalid`], as soon as no further octets could make the bytes valid.
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

/// What brought the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Carrier {
    /// A byte stream: the header may arrive in pieces.
    Stream,
    /// One datagram: the header is in it whole, and is of version 2, or it is invalid (section 2).
    Datagram,
}

/// What the bytes amount to, if they aren't wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parsed<'a> {
    /// A header, and possibly data after it.
    Complete(Header<'a>),
    /// The start of a header, which takes at least this many octets in all, counted from offset 0.
    ///
    /// It is always more than there are now, and never more than the header will take: who reads
    /// exactly up to it never takes an octet of the data behind. A wrong octet on the way may be
    /// noticed sooner. At the end of the stream, or of one's patience, it means that the header is
    /// invalid.
    NeedMore(usize),
}

const FIRST_OF_V1: u8 = b'P';
const FIRST_OF_V2: u8 = b'\r';
