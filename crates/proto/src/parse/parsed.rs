//! What reading a header results in.

use crate::header::Header;

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
