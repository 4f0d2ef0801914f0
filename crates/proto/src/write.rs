//! Writing headers. [`parse`](crate::parse()) accepts whatever is written here, and returns the same values.

pub(crate) mod plain;
#[cfg(feature = "std")]
mod v2;

#[cfg(feature = "std")]
use std::net::SocketAddr;

pub use plain::PlainHeader;
#[cfg(feature = "std")]
pub use v2::{V2Writer, WriteError};

/// Appends a version 1 line for a TCP connection, at most 104 bytes: [`PlainHeader::v1`].
#[cfg(feature = "std")]
pub fn write_v1(out: &mut Vec<u8>, source: SocketAddr, destination: SocketAddr) {
    out.extend(PlainHeader::v1(source, destination).as_bytes());
}

/// Appends a version 1 line without addresses (UNKNOWN): the receiver uses the connection's own endpoints.
#[cfg(feature = "std")]
pub fn write_v1_unknown(out: &mut Vec<u8>) {
    out.extend(b"PROXY UNKNOWN\r\n");
}

#[cfg(test)]
mod tests;
