//! Every address of the tests' networks; see the picture in [`crate::harness::lab`].

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicU16, Ordering};

/// The client's address. Its connections come from this one port ([`crate::harness::lab::Lab::new`]), so a
/// test knows which address the server has to report.
pub(crate) const CLIENT_V4: SocketAddr = v4([203, 0, 113, 9], 40054);
pub(crate) const CLIENT_V6: SocketAddr = v6([0x2001, 0xdb8, 9, 0, 0, 0, 0, 9], 40054);
/// The frontend: where clients connect to the balancer.
pub(crate) const FRONT_V4: SocketAddr = v4([203, 0, 113, 1], 80);
pub(crate) const FRONT_V6: SocketAddr = v6([0x2001, 0xdb8, 9, 0, 0, 0, 0, 1], 80);
/// The address that the balancer connects from.
pub(crate) const BALANCER_V4: IpAddr = v4([10, 81, 0, 2], 0).ip();
pub(crate) const BALANCER_V6: IpAddr = v6([0xfd81, 0, 0, 0, 0, 0, 0, 2], 0).ip();
/// Where the proxy listens on the server.
pub(crate) const LISTEN_V4: SocketAddr = v4([10, 81, 0, 1], 8443);
pub(crate) const LISTEN_V6: SocketAddr = v6([0xfd81, 0, 0, 0, 0, 0, 0, 1], 8443);
/// Where the backends listen.
pub(crate) const TARGET_V4: SocketAddr = v4([127, 0, 0, 1], 9000);
pub(crate) const TARGET_V6: SocketAddr = v6([0, 0, 0, 0, 0, 0, 0, 1], 9000);

/// Returns a client address for a hand-made header, another one at every call. No host of the lab has it, as behind a real
/// balancer. A fresh port is free of the TIME_WAIT of the test's earlier connections.
pub(crate) fn fresh_client_v4() -> SocketAddr {
    v4([198, 51, 100, 7], fresh_port())
}

/// Returns an IPv6 client address, like [`fresh_client_v4`].
pub(crate) fn fresh_client_v6() -> SocketAddr {
    v6([0x2001, 0xdb8, 7, 0, 0, 0, 0, 7], fresh_port())
}

/// Returns a client address in the family of `addr`, like [`fresh_client_v4`].
pub(crate) fn fresh_client_like(addr: SocketAddr) -> SocketAddr {
    if addr.is_ipv4() {
        fresh_client_v4()
    } else {
        fresh_client_v6()
    }
}

/// Returns a port above those of the listeners in these networks and below the ephemeral ports (32768 and above, ip(7)): a
/// session at an ephemeral port could collide with the client's own.
fn fresh_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    10_000 + NEXT.fetch_add(1, Ordering::Relaxed) % 22_000
}

/// A port at the server's address.
pub(crate) const fn server_v4(port: u16) -> SocketAddr {
    v4([10, 81, 0, 1], port)
}

pub(crate) const fn v4(ip: [u8; 4], port: u16) -> SocketAddr {
    let [a, b, c, d] = ip;
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(a, b, c, d)), port)
}

pub(crate) const fn v6(ip: [u16; 8], port: u16) -> SocketAddr {
    let [a, b, c, d, e, f, g, h] = ip;
    SocketAddr::new(IpAddr::V6(Ipv6Addr::new(a, b, c, d, e, f, g, h)), port)
}

/// Parses `IP:PORT`.
pub(crate) fn addr(text: &str) -> SocketAddr {
    text.parse().expect("an address")
}

/// Parses an IP address and a port that a server prints separately.
pub(crate) fn from_parts(ip: &str, port: &str) -> Option<SocketAddr> {
    Some(SocketAddr::new(ip.parse().ok()?, port.parse().ok()?))
}
