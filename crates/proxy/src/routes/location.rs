//! Finds where a backend is: on loopback, on another address of this host, or on another host.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use peername_sys::Result as SysResult;
use peername_sys::netlink::Netlink;

/// The location of a backend, seen from this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BackendLocation {
    /// On this loopback address. Only backends send from loopback addresses, so a rule may match the whole network.
    Loopback(IpAddr),
    /// On another address of this host. The rule must name the port, and also captures replies to clients that connect
    /// to the backend directly.
    ThisHost(SocketAddr),
    /// On another host.
    OtherHost,
}

/// Finds the location of `target`. An unspecified address is loopback, as for connect(2), and an IPv4-mapped one is the
/// IPv4 address that it maps. Needs no capability.
pub async fn locate_backend(netlink: &Netlink, target: SocketAddr) -> SysResult<BackendLocation> {
    let ip = match target.ip().to_canonical() {
        ip if !ip.is_unspecified() => ip,
        IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    };
    Ok(if ip.is_loopback() {
        BackendLocation::Loopback(ip)
    } else if netlink.is_local_address(ip).await? {
        BackendLocation::ThisHost(SocketAddr::new(ip, target.port()))
    } else {
        BackendLocation::OtherHost
    })
}
