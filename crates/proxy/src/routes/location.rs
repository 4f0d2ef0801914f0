//! Where a backend is, seen from here.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use peername_sys::Result as SysResult;
use peername_sys::netlink::Netlink;

/// Where a backend is, seen from here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BackendLocation {
    /// On this loopback address. Nothing but backends answers from there, so a rule may take all of
    /// it.
    Loopback(IpAddr),
    /// On another address of this host. The rule must name the port, and captures what the backend
    /// sends to clients that connect to it directly, too.
    ThisHost(SocketAddr),
    /// On another host.
    OtherHost,
}

/// Finds out where `target` is. An unspecified address is loopback, as for connect(2), and an
/// IPv4-mapped one is the IPv4 address it stands for. Needs no capability.
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
