//! An IPv6 address and a port that lack their brackets: a frequent mistake, which looks like another address.

use core::net::{Ipv6Addr, SocketAddrV6};
use core::num::NonZeroU16;

/// Parses an IPv6 address and a port without brackets, such as `::1:22`. `None` unless the whole text is an IPv6 address, too:
/// only then is it ambiguous.
pub fn parse_unbracketed(text: &str) -> Option<SocketAddrV6> {
    text.parse::<Ipv6Addr>().ok()?;
    let (address, port) = text.rsplit_once(':')?;
    let port: NonZeroU16 = port.parse().ok()?;
    Some(SocketAddrV6::new(address.parse().ok()?, port.get(), 0, 0))
}
