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
    /// The start of a header. The number is the least total length that the header can have, counted from offset 0.
    ///
    /// It is always more than there are bytes now, and never more than the header will take. So a reader that reads
    /// exactly up to it never consumes a byte of the data behind the header. A wrong byte may be detected earlier. If
    /// the stream ends or a deadline passes at this point, the header is invalid.
    NeedMore(usize),
}
