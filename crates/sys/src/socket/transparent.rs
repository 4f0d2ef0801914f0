//! Transparent sockets (IP_TRANSPARENT): they may be bound to a foreign address, and a TPROXY rule may deliver
//! packets for any address and port to them (tproxy.rst of the kernel).

use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;

use socket2::{Protocol, SockRef, Type};

use crate::socket::{self, discard_all, set_int};
use crate::{NameCall, Result};

/// Allows a socket to be bound to any address and to receive what TPROXY delivers (IP_TRANSPARENT since Linux
/// 2.6.28, IPV6_TRANSPARENT since 2.6.37). Accepted sockets inherit it. Needs CAP_NET_ADMIN or
/// CAP_NET_RAW.
pub fn set_transparent(socket: impl AsFd, v6: bool) -> Result<()> {
    let socket = socket.as_fd();
    if v6 {
        set_int(socket, libc::SOL_IPV6, libc::IPV6_TRANSPARENT, 1)
            .call("setsockopt(IPV6_TRANSPARENT)")
    } else {
        set_int(socket, libc::SOL_IP, libc::IP_TRANSPARENT, 1).call("setsockopt(IP_TRANSPARENT)")
    }
}

/// Whether a socket is transparent: both options are one flag in the kernel.
pub fn is_transparent(socket: impl AsFd) -> Result<bool> {
    SockRef::from(&socket)
        .ip_transparent_v4()
        .call("getsockopt(IP_TRANSPARENT)")
}

/// Makes a UDP socket report the original destination of each datagram that TPROXY delivers to it
/// (IP_RECVORIGDSTADDR since Linux 2.6.29, IPV6_RECVORIGDSTADDR since 2.6.37):
/// [`crate::udp::RecvMeta::original`].
///
/// # Errors
///
/// ENOPROTOOPT for a kernel that is too old.
pub fn receive_original_destination(socket: impl AsFd, v6: bool) -> Result<()> {
    // An IPv6 socket may receive IPv4 too, and reports that by IPv4's option.
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

/// Opens a non-blocking UDP socket that sends from `addr`, foreign or not (spoof), and receives nothing: datagrams
/// to `addr` are for the socket that TPROXY selects. Needs CAP_NET_ADMIN or CAP_NET_RAW.
///
/// # Errors
///
/// EADDRINUSE when a socket of this host has the address and port; EPERM without either capability; EMFILE or ENFILE.
pub fn send_only_udp(addr: SocketAddr) -> Result<UdpSocket> {
    let socket = socket::open(addr, Type::DGRAM, Protocol::UDP)?;
    if addr.is_ipv6() {
        socket.set_only_v6(true).call("setsockopt(IPV6_V6ONLY)")?;
    }
    set_transparent(&socket, addr.is_ipv6())?;
    discard_all(&socket)?;
    socket.bind(&addr.into()).call("bind(2)")?;
    Ok(socket.into())
}
