//! Special-purpose addresses, which are special on every host.
//!
//! A source policy rejects claims of them: a backend that trusts its own host must not
//! be told that a remote client is local. They are defined here because every reader of headers needs the same rules.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The purpose of a special address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Special {
    /// 0.0.0.0/8 or `::`: no host has it.
    Unspecified,
    /// 127.0.0.0/8 or `::1`.
    Loopback,
    /// 255.255.255.255, or an end of the loopback network.
    Broadcast,
    /// 224.0.0.0/4 or ff00::/8.
    Multicast,
    /// 240.0.0.0/4.
    Reserved,
    /// fe80::/10: means nothing without the interface it belongs to.
    LinkLocal,
}

/// The purpose of this very address; `None` for an ordinary one. See [`meanings`] for embedded addresses.
pub fn special(ip: IpAddr) -> Option<Special> {
    match ip {
        IpAddr::V4(ip) => special_v4(ip),
        IpAddr::V6(ip) => special_v6(ip),
    }
}

/// The addresses that this one may stand for: itself, IPv4-mapped ones as IPv4, and the IPv4 address embedded in it.
pub fn meanings(ip: IpAddr) -> impl Iterator<Item = IpAddr> {
    let ip = ip.to_canonical();
    [Some(ip), embedded_ipv4(ip).map(IpAddr::V4)]
        .into_iter()
        .flatten()
}

/// One form for one address: IPv4 where it is IPv4-mapped IPv6 (`::ffff:a.b.c.d`), and without flow label and scope.
pub fn canonical(addr: SocketAddr) -> SocketAddr {
    SocketAddr::new(addr.ip().to_canonical(), addr.port())
}

/// The IPv4 address inside an IPv6 one: IPv4-compatible (RFC 4291, 2.5.5.1), IPv4-translated (RFC 2765, 2.1),
/// NAT64 (RFC 6052 and RFC 8215), 6to4 (RFC 3056), ISATAP (RFC 5214, 6.1) and Teredo (RFC 4380, 4; the client's, not its server's). Not
/// IPv4-mapped ones, which [`IpAddr::to_canonical`] turns into IPv4.
pub fn embedded_ipv4(ip: IpAddr) -> Option<Ipv4Addr> {
    let IpAddr::V6(ip) = ip else { return None };
    let join = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        Ipv4Addr::new(a, b, c, d)
    };
    match ip.segments() {
        [0, 0, 0, 0, 0, 0, 0, 0 | 1] => None,
        [0, 0, 0, 0, 0, 0, high, low] => Some(join(high, low)),
        [0, 0, 0, 0, 0xffff, 0, high, low] => Some(join(high, low)),
        [0x2001, 0, _, _, _, _, high, low] => Some(join(!high, !low)),
        [0x64, 0xff9b, 0 | 1, _, _, _, high, low] => Some(join(high, low)),
        [0x2002, high, low, ..] => Some(join(high, low)),
        // The two lowest bits of the first byte (u/l and group) vary between ISATAP addresses.
        [_, _, _, _, 0 | 0x100 | 0x200 | 0x300, 0x5efe, high, low] => Some(join(high, low)),
        _ => None,
    }
}

fn special_v4(ip: Ipv4Addr) -> Option<Special> {
    match ip.octets() {
        [0, ..] => Some(Special::Unspecified),
        [255, 255, 255, 255] => Some(Special::Broadcast),
        // The kernel treats both ends of the loopback network as broadcast addresses.
        [127, 255, 255, 255] | [127, 0, 0, 0] => Some(Special::Broadcast),
        [127, ..] => Some(Special::Loopback),
        [224..=239, ..] => Some(Special::Multicast),
        [240..=255, ..] => Some(Special::Reserved),
        _ => None,
    }
}

fn special_v6(ip: Ipv6Addr) -> Option<Special> {
    match ip.segments() {
        [0, 0, 0, 0, 0, 0, 0, 0] => Some(Special::Unspecified),
        [0, 0, 0, 0, 0, 0, 0, 1] => Some(Special::Loopback),
        [0xff00..=0xffff, ..] => Some(Special::Multicast),
        [0xfe80..=0xfebf, ..] => Some(Special::LinkLocal),
        _ => None,
    }
}
