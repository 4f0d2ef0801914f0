//! Detects targets that are the proxy's own listeners: such a loop would end only when no descriptors are left.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Whether a connection to `target` would reach one of these listeners, by their addresses. `is_own` recognizes addresses
/// of this host beside loopback.
pub fn connects_to_listener(
    listen: &HashSet<SocketAddr>,
    target: SocketAddr,
    is_own: impl Fn(IpAddr) -> bool,
) -> bool {
    let wildcards: &[SocketAddr] = match target.ip() {
        ip if !ip.is_loopback() && !is_own(ip) => &[],
        ip if ip.is_ipv4() => &WILDCARDS,
        _ => &WILDCARDS[1..],
    };
    listen.contains(&target)
        || wildcards.iter().any(|&(mut wildcard)| {
            wildcard.set_port(target.port());
            listen.contains(&wildcard)
        })
}

/// `[::]` accepts IPv4 too.
const WILDCARDS: [SocketAddr; 2] = [
    SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0),
    SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), 0),
];
