//! What the kernel reports about one socket: identity, peer, protocol.

use std::io;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SocketType, recv, sockopt};
use socket2::SockRef;

use crate::socket::get_option;
use crate::{NameCall, Result};

/// The kernel's id of the socket (SO_COOKIE, since Linux 4.6): the same by every descriptor and in every process, and not
/// reused until the next boot. An accepted MPTCP socket may have the cookie of its listener.
///
/// # Errors
///
/// ENOPROTOOPT before Linux 4.6.
pub fn cookie(socket: impl AsFd) -> Result<u64> {
    sockopt::socket_cookie(socket).call("getsockopt(SO_COOKIE)")
}

/// The socket's inode: no other open socket has it.
pub fn inode(socket: impl AsFd) -> Result<u64> {
    let stat = rustix::fs::fstat(socket).call("fstat(2)")?;
    Ok(stat.st_ino)
}

/// Borrows an inherited descriptor of this number; `None` if it is not open. Nothing may close it while it is borrowed.
pub fn borrow_open(number: RawFd) -> Option<BorrowedFd<'static>> {
    if number < 0 {
        return None;
    }
    // SAFETY: the descriptor is borrowed, and only if it is open. The caller ensures that it stays open.
    let fd = unsafe { BorrowedFd::borrow_raw(number) };
    rustix::io::fcntl_getfd(fd).is_ok().then_some(fd)
}

/// Whether this is a socket. Unlike fstat(2), this never waits for a file system.
pub fn is_socket(fd: impl AsFd) -> bool {
    sockopt::socket_type(fd).is_ok()
}

/// Whether this is a socket that listens (SO_ACCEPTCONN).
pub fn is_listener(socket: impl AsFd) -> bool {
    SockRef::from(&socket).is_listener().unwrap_or(false)
}

/// The id of the network namespace that the socket belongs to (SO_NETNS_COOKIE, since Linux 5.14);
/// 0 where the kernel does not support it.
pub fn netns_cookie(socket: impl AsFd) -> u64 {
    // SAFETY: an integer has no invalid bits.
    let cookie = unsafe { get_option(socket, libc::SOL_SOCKET, libc::SO_NETNS_COOKIE) };
    cookie.unwrap_or(0)
}

/// The id of the network namespace of the calling thread, as [`netns_cookie`] returns it; 0 where the kernel does not support
/// it.
pub fn current_netns_cookie() -> u64 {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None);
    socket.map_or(0, netns_cookie)
}

/// The peer's address (getpeername(2)).
///
/// # Errors
///
/// ENOTCONN for a socket that is not connected, or has a peer without an IP address.
pub fn peer_addr(socket: impl AsFd) -> io::Result<SocketAddr> {
    let peer = SockRef::from(&socket).peer_addr()?.as_socket();
    peer.ok_or_else(|| io::Error::from_raw_os_error(libc::ENOTCONN))
}

/// The protocol of a TCP or MPTCP socket (SO_PROTOCOL); `None` for any other descriptor.
pub fn protocol(socket: impl AsFd) -> Option<StreamProtocol> {
    match sockopt::socket_protocol(socket).ok()?? {
        rustix::net::ipproto::TCP => Some(StreamProtocol::Tcp),
        rustix::net::ipproto::MPTCP => Some(StreamProtocol::Multipath),
        _ => None,
    }
}

/// Whether this is a UDP socket (SO_PROTOCOL).
pub fn is_udp(socket: impl AsFd) -> bool {
    matches!(
        sockopt::socket_protocol(socket),
        Ok(Some(rustix::net::ipproto::UDP))
    )
}

/// How long TCP_DEFER_ACCEPT (tcp(7)) has delayed the accept(2) of a connection that has sent nothing yet; zero for a
/// connection that has sent something. Derived from the number of retransmitted SYN-ACKs (TCP_INFO): the first is sent after a
/// second, each further one after twice the time of the one before.
pub fn defer_accept_delay(socket: impl AsFd) -> Duration {
    let mut byte = [MaybeUninit::uninit()];
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    match recv(&socket, &mut byte, flags) {
        Err(Errno::AGAIN) => {}
        _ => return Duration::ZERO,
    }
    tcp_info(socket).map_or(Duration::ZERO, |info| {
        Duration::from_secs((1 << info.tcpi_total_retrans.min(7)) - 1)
    })
}

/// Whether a TCP socket is closed (TCP_INFO). After a connect(2) that has returned EINPROGRESS, this means that the peer has
/// refused the connection. Leaves the error of the socket (SO_ERROR) to its owner.
pub fn is_closed(socket: impl AsFd) -> bool {
    tcp_info(socket).is_ok_and(|info| info.tcpi_state == TCP_CLOSE)
}

/// The state of a TCP socket (tcp(7), TCP_INFO).
pub(super) fn tcp_info(socket: impl AsFd) -> io::Result<libc::tcp_info> {
    // SAFETY: a struct of integers has no invalid bits.
    unsafe { get_option(socket, libc::SOL_TCP, libc::TCP_INFO) }
}

/// From `net/tcp_states.h`.
const TCP_CLOSE: u8 = 7;

/// The protocols that carry a byte stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamProtocol {
    /// TCP.
    Tcp,
    /// Multipath TCP (RFC 8684).
    Multipath,
}
