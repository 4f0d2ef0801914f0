//! Sockets that stand for any address (IP_TRANSPARENT): they may be bound to one that is no interface's,
//! and a TPROXY rule may give them what was sent to any address and port (tproxy.rst of the kernel).

use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;

use socket2::{Domain, Protocol, SockRef, Socket, Type};

use crate::socket::discard_all;
use crate::socket::set_int;
use crate::{NameCall, Result};

/// Lets a socket be bound to any address and take what TPROXY gives it (IP_TRANSPARENT since Linux
/// 2.6.28, IPV6_TRANSPARENT since 2.6.37). Accepted sockets inherit it. Needs CAP_NET_ADMIN or
/// CAP_NET_RAW.
pub fn set_transparent(socket: impl AsFd, v6: bool) -> Result<()> {
    let (level, option, call) = match v6 {
        true => (
            libc::SOL_IPV6,
            libc::IPV6_TRANSPARENT,
            "setsockopt(IPV6_TRANSPARENT)",
        ),
        false => (
            libc::SOL_IP,
            libc::IP_TRANSPARENT,
            "setsockopt(IP_TRANSPARENT)",
        ),
    };
    set_int(socket.as_fd(), level, option, 1).call(call)
}

/// Whether [`set_transparent`] was called for it: both options are one flag in the kernel.
pub fn is_transparent(socket: impl AsFd) -> Result<bool> {
    SockRef::from(&socket)
        .ip_transparent_v4()
        .call("getsockopt(IP_TRANSPARENT)")
}

/// Lets a UDP socket tell of each datagram the address and port it was sent to before TPROXY gave it to
/// this socket (IP_RECVORIGDSTADDR since Linux 2.6.29, IPV6_RECVORIGDSTADDR since 2.6.37):
/// [`crate::udp::Arrived::original`].
pub fn receive_original_destination(socket: impl AsFd, v6: bool) -> Result<()> {
    // An IPv6 socket may take IPv4 too, and tells of it in IPv4's way.
    set_int(socket.as_fd(), libc::SOL_IP, libc::IP_RECVORIGDSTADDR, 1)
        .call("setsockopt(IP_RECVORIGDSTADDR)")?;
    if !v6 {
        return Ok(());
    }
    set_int(
        socket.as_fd(),
        libc::SOL_IPV6,
        libc::IPV6_RECVORIGDSTADDR,
        1,
    )
    .call("setsockopt(IPV6_RECVORIGDSTADDR)")
}

/// A non-blocking UDP socket that sends from `addr`, whoever has that address, and receives nothing: what
/// is sent there belongs to the socket that TPROXY names. EADDRINUSE when a socket of this host has
/// the address and port. Needs CAP_NET_ADMIN or CAP_NET_RAW.
pub fn send_only_udp(addr: SocketAddr) -> Result<UdpSocket> {
    let kind = Type::DGRAM.nonblocking().cloexec();
    let socket =
        Socket::new(Domain::for_address(addr), kind, Some(Protocol::UDP)).call("socket(2)")?;
    if addr.is_ipv6() {
        socket.set_only_v6(true).call("setsockopt(IPV6_V6ONLY)")?;
    }
    set_transparent(&socket, addr.is_ipv6())?;
    discard_all(&socket)?;
    socket.bind(&addr.into()).call("bind(2)")?;
    Ok(socket.into())
}
