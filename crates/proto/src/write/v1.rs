//! Version 1 lines (section 2.1).

use std::net::SocketAddr;

use super::plain::PlainHeader;

/// Appends a line for a TCP connection, at most 104 bytes: [`PlainHeader::v1`].
pub fn write_v1(out: &mut Vec<u8>, source: SocketAddr, destination: SocketAddr) {
    out.extend(PlainHeader::v1(source, destination).as_bytes());
}

/// Appends a line without addresses (UNKNOWN): the receiver uses the connection's own endpoints.
pub fn write_v1_unknown(out: &mut Vec<u8>) {
    out.extend(b"PROXY UNKNOWN\r\n");
}
