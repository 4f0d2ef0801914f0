//! Detects targets that are the proxy's own listeners: such a loop would end only when no descriptors are left.

use std::collections::HashSet;
use std::iter;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Returns the listener that a connection to `target` would reach, if there is one. `is_own` recognizes the addresses of this
/// host beside loopback.
pub fn reached_listener(
    listen: &HashSet<SocketAddr>,
    target: SocketAddr,
    is_own: impl Fn(IpAddr) -> bool,
) -> Option<SocketAddr> {
    let wildcards: &[IpAddr] = match target.ip() {
        ip if !ip.is_loopback() && !is_own(ip) => &[],
        ip if ip.is_ipv4() => &WILDCARDS,
        _ => &WILDCARDS[1..],
    };
    iter::once(target)
        .chain(
            wildcards
                .iter()
                .map(|&ip| SocketAddr::new(ip, target.port())),
        )
        .find(|address| listen.contains(address))
}

/// Both accept connections to an IPv4 target, because `[::]` accepts IPv4, too. Only the second accepts those to an IPv6
/// target.
const WILDCARDS: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::UNSPECIFIED),
    IpAddr::V6(Ipv6Addr::UNSPECIFIED),
];
