//! The result of parsing, and the carrier of the bytes.

use crate::header::Header;

/// The transport that carried the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Carrier {
    /// A byte stream: the header may arrive in pieces.
    Stream,
    /// One datagram: the header must be complete in it, and of version 2 (section 2).
    Datagram,
}

/// The result of parsing bytes that aren't invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parsed<'a> {
    /// A header, and possibly data after it.
    Complete(Header<'a>),
    /// The start of a header, and the least total length that the header can have, in bytes from its start.
    ///
    /// That length is always more than the bytes given, and never more than the header will have. So a reader that reads
    /// exactly that many never consumes a byte of the data behind the header. If the stream ends or a deadline passes at this
    /// point, the header is invalid.
    NeedMore(usize),
}
