//! What the kernel tells about one TCP socket, and the few settings that are changed on it.

use std::io;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SocketType, recv, sockopt};
use socket2::SockRef;

use crate::{NameCall, Result};

/// The kernel's number of the socket (SO_COOKIE, since Linux 4.6): of the socket whichever descriptor
/// or process it is seen through, and not used again until the next boot.
pub fn cookie(socket: impl AsFd) -> Result<u64> {
    sockopt::socket_cookie(socket).call("getsockopt(SO_COOKIE)")
}

/// The number of the network namespace that the socket belongs to (SO_NETNS_COOKIE, since Linux 5.14);
/// 0 where the kernel does not tell.
pub fn netns_cookie(socket: impl AsFd) -> u64 {
    let mut cookie = 0_u64;
    let mut len = size_of::<u64>() as libc::socklen_t;
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: the kernel writes at most `len` octets, which `cookie` has.
    let rc = unsafe {
        libc::getsockopt(
            fd,
            libc::SOL_SOCKET,
            libc::SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut len,
        )
    };
    if rc == 0 { cookie } else { 0 }
}

/// The number of the network namespace that the calling thread is in, as [`netns_cookie`]'s; 0 where the
/// kernel does not tell.
pub fn current_netns_cookie() -> u64 {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None);
    socket.map_or(0, netns_cookie)
}

/// Who is at the other end (getpeername(2)).
///
/// # Errors
///
/// ENOTCONN when nobody is, or nobody of the Internet.
pub fn peer_addr(socket: impl AsFd) -> io::Result<SocketAddr> {
    let peer = SockRef::from(&socket).peer_addr()?.as_socket();
    peer.ok_or_else(|| io::Error::from_raw_os_error(libc::ENOTCONN))
}

/// Whether it is a TCP or MPTCP socket (SO_PROTOCOL), and which.
pub fn protocol(socket: impl AsFd) -> Option<StreamProtocol> {
    match sockopt::socket_protocol(socket).ok()?? {
        rustix::net::ipproto::TCP => Some(StreamProtocol::Tcp),
        rustix::net::ipproto::MPTCP => Some(StreamProtocol::Multipath),
        _ => None,
    }
}

/// How long the kernel has kept a new connection from accept(2) that has sent nothing (TCP_DEFER_ACCEPT, tcp(7)): zero for one
/// that has sent something. Told by the SYN-ACKs that were sent again meanwhile (TCP_INFO), the first after a second, the
/// next after twice as long.
pub fn defer_accept_delay(socket: impl AsFd) -> Duration {
    let mut octet = [MaybeUninit::uninit()];
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    match recv(&socket, &mut octet, flags) {
        Err(Errno::AGAIN) => {}
        _ => return Duration::ZERO,
    }
    // SAFETY: a structure of integers, for which zeros are values.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut len = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` octets, which `info` has.
    let rc = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_TCP,
            libc::TCP_INFO,
            (&raw mut info).cast(),
            &raw mut len,
        )
    };
    match rc {
        0 => Duration::from_secs((1 << info.tcpi_total_retrans.min(7)) - 1),
        _ => Duration::ZERO,
    }
}

/// The two that carry a byte stream with headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamProtocol {
    /// TCP.
    Tcp,
    /// Multipath TCP (RFC 8684). The kernel's list of TCP sockets has its subflows, not itself.
    Multipath,
}
