//! Version 1 lines (section 2.1).

use std::fmt::{self, Display, Formatter};
use std::net::{Ipv6Addr, SocketAddr};

use super::Pair;

/// Appends a line for a TCP connection, at most 104 octets.
///
/// With ends of both families the IPv4 one is mapped into IPv6. Flow and scope of an IPv6 address
/// aren't part of the format.
pub fn write_v1(out: &mut Vec<u8>, source: SocketAddr, destination: SocketAddr) {
    let (from, to) = (source.port(), destination.port());
    let line = match Pair::new(source, destination) {
        Pair::V4(source, destination) => {
            format!("PROXY TCP4 {source} {destination} {from} {to}\r\n")
        }
        Pair::V6(source, destination) => {
            format!(
                "PROXY TCP6 {} {} {from} {to}\r\n",
                Groups(source),
                Groups(destination)
            )
        }
    };
    out.extend(line.as_bytes());
}

/// Appends the line that describes nobody: the receiver uses the connection's own endpoints.
pub fn write_v1_unknown(out: &mut Vec<u8>) {
    out.extend(b"PROXY UNKNOWN\r\n");
}

/// RFC 5952, but never with a dotted tail: the protocol's grammar has none, and strict receivers
/// refuse it.
struct Groups(Ipv6Addr);

impl Display for Groups {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.0.segments() {
            [0, 0, 0, 0, 0, 0xffff, high, low] => write!(f, "::ffff:{high:x}:{low:x}"),
            _ => write!(f, "{}", self.0),
        }
    }
}
