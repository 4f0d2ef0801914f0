//! The bytes on the wire: the verifiable pattern, and the tagged datagrams that carry it over UDP.

pub(crate) mod datagram;
pub(crate) mod pattern;
pub(crate) mod transport;
