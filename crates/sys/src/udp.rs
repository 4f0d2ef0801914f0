//! Datagrams by the batch: what UDP listeners and UDP sessions ask of the kernel.
//!
//! One system call takes or sends many datagrams, each with the address of ours that it was sent to
//! or is to be sent from. Runs of datagrams of one size travel as one where the kernel can
//! (UDP_GRO, UDP_SEGMENT). Which worker gets a datagram is decided by a filter ([`steering`]).

mod control;
mod inbox;
mod outbox;
pub mod steering;

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};

use socket2::{Domain, Protocol, SockFilter, SockRef, Socket, Type};

use crate::tcp::listener::Sharing;
use crate::tcp::stream::set_int;
use crate::{NameCall, Result};

pub use control::Local;
pub use inbox::{Arrived, Inbox};
pub use outbox::{Message, Outbox};

/// Lets received datagrams tell how many the kernel has thrown away at the socket (SO_RXQ_OVFL, since
/// Linux 2.6.33).
pub fn count_lost(socket: impl AsFd) -> Result<()> {
    set_int(socket.as_fd(), libc::SOL_SOCKET, libc::SO_RXQ_OVFL, 1).call("setsockopt(SO_RXQ_OVFL)")
}

/// Whether nobody receives on `addr`, not even with SO_REUSEPORT; fails with EADDRINUSE if somebody
/// does.
pub fn is_free(addr: SocketAddr) -> Result<()> {
    // IPv4 may have a socket of its own beside `[::]`, so only IPv6 is asked about.
    let alone = Sharing {
        among_workers: false,
        v4_elsewhere: true,
    };
    listen(addr, alone).map(drop)
}

/// Opens a non-blocking UDP socket on `addr` that tells of each datagram the address of ours it was
/// sent to (IP_PKTINFO, IPV6_RECVPKTINFO) and how many the kernel has thrown away (SO_RXQ_OVFL).
///
/// It is closed until it is opened with [`open`]: what comes before is thrown away. There is no
/// SO_REUSEADDR: for UDP it would let another program share the port in silence.
pub fn listen(addr: SocketAddr, sharing: Sharing) -> Result<UdpSocket> {
    let kind = Type::DGRAM.nonblocking().cloexec();
    let socket =
        Socket::new(Domain::for_address(addr), kind, Some(Protocol::UDP)).call("socket(2)")?;
    if addr.is_ipv6() {
        let v6_only = sharing.v4_elsewhere || !addr.ip().is_unspecified();
        socket
            .set_only_v6(v6_only)
            .call("setsockopt(IPV6_V6ONLY)")?;
    }
    tell_all(&socket, addr)?;
    if sharing.among_workers {
        socket
            .set_reuse_port(true)
            .call("setsockopt(SO_REUSEPORT)")?;
    }
    take_nothing(&socket)?;
    socket.bind(&addr.into()).call("bind(2)")?;
    Ok(socket.into())
}

/// Makes a bound UDP socket on `addr` that was opened by another tell what one made by [`listen`] tells.
pub fn adopt(socket: OwnedFd, addr: SocketAddr) -> Result<UdpSocket> {
    tell_all(&socket, addr)?;
    Ok(socket.into())
}

/// Where datagrams were sent to, and how many were thrown away.
fn tell_all(socket: impl AsFd, addr: SocketAddr) -> Result<()> {
    let socket = socket.as_fd();
    if addr.is_ipv6() {
        set_int(socket, libc::SOL_IPV6, libc::IPV6_RECVPKTINFO, 1)
            .call("setsockopt(IPV6_RECVPKTINFO)")?;
    } else {
        set_int(socket, libc::SOL_IP, libc::IP_PKTINFO, 1).call("setsockopt(IP_PKTINFO)")?;
    }
    count_lost(socket)
}

/// Lets a socket made by [`listen`] receive. Of sockets that share an address, none should before all
/// are there and know which of them is for whom.
pub fn open(socket: impl AsFd) -> Result<()> {
    SockRef::from(&socket)
        .detach_filter()
        .call("setsockopt(SO_DETACH_FILTER)")
}

/// Lets a socket throw away whatever comes, until [`open`].
pub(crate) fn take_nothing(socket: &Socket) -> Result<()> {
    socket
        .attach_filter(&[TAKE_NOTHING])
        .call("setsockopt(SO_ATTACH_FILTER)")
}

/// The firewall mark of what a socket sends (SO_MARK, socket(7)); 0 for none.
pub fn mark(socket: impl AsFd) -> Result<u32> {
    SockRef::from(&socket).mark().call("getsockopt(SO_MARK)")
}

/// Asks for receive and send buffers of `bytes`. The kernel caps them at `net.core.rmem_max` and
/// `net.core.wmem_max` without an error: [`receive_buffer`] tells.
pub fn set_buffers(socket: impl AsFd, bytes: usize) -> Result<()> {
    let socket = SockRef::from(&socket);
    socket
        .set_recv_buffer_size(bytes)
        .call("setsockopt(SO_RCVBUF)")?;
    socket
        .set_send_buffer_size(bytes)
        .call("setsockopt(SO_SNDBUF)")
}

/// What the receive buffer may hold, by the kernel's account, which doubles what was asked for
/// (socket(7)).
pub fn receive_buffer(socket: impl AsFd) -> Result<usize> {
    SockRef::from(&socket)
        .recv_buffer_size()
        .call("getsockopt(SO_RCVBUF)")
}

/// Lets the kernel hand over several datagrams of one sender and one size at once (UDP_GRO, since
/// Linux 5.0); [`Arrived::segment`] says where to cut.
pub fn receive_merged(socket: impl AsFd) -> Result<()> {
    set_int(socket.as_fd(), libc::SOL_UDP, libc::UDP_GRO, 1).call("setsockopt(UDP_GRO)")
}

/// Whether this kernel cuts a large datagram into several of one size (UDP_SEGMENT, since Linux 4.18).
pub fn can_send_merged() -> bool {
    let probe = UdpSocket::bind(SocketAddr::new(IpAddr::from([127, 0, 0, 1]), 0));
    probe.is_ok_and(|socket| {
        set_int(socket.as_fd(), libc::SOL_UDP, libc::UDP_SEGMENT, SOME_SIZE).is_ok()
    })
}

/// Keeps no octet of what comes, for which the kernel then has no use (socket(7), SO_ATTACH_FILTER).
const TAKE_NOTHING: SockFilter = SockFilter::new((libc::BPF_RET | libc::BPF_K) as u16, 0, 0, 0);
/// Any size of a segment does for the probe.
const SOME_SIZE: libc::c_int = 1200;
