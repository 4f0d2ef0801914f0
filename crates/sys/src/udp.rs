//! Datagrams by the batch: what UDP listeners and UDP sessions ask of the kernel.
//!
//! One system call takes or sends many datagrams, each with the address of ours that it was sent to
//! or is to be sent from. Runs of datagrams of one size travel as one where the kernel can
//! (UDP_GRO, UDP_SEGMENT). Which worker gets a datagram is decided by a filter ([`steering`]).

mod control;
mod recv_batch;
mod send_batch;
pub mod steering;

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};

use socket2::{Domain, Protocol, SockRef, Socket, Type};

use crate::socket::{BindOptions, discard_all, set_int};
use crate::{NameCall, Result};

pub use control::PktInfo;
pub use recv_batch::{RecvBatch, RecvMeta};
pub use send_batch::{SendBatch, Transmit};

/// Lets received datagrams tell how many the kernel has thrown away at the socket (SO_RXQ_OVFL, since
/// Linux 2.6.33).
pub fn enable_drop_count(socket: impl AsFd) -> Result<()> {
    set_int(socket.as_fd(), libc::SOL_SOCKET, libc::SO_RXQ_OVFL, 1).call("setsockopt(SO_RXQ_OVFL)")
}

/// Whether nobody receives on `addr`, not even with SO_REUSEPORT; fails with EADDRINUSE if somebody
/// does.
pub fn check_address_free(addr: SocketAddr) -> Result<()> {
    // IPv4 may have a socket of its own beside `[::]`, so only IPv6 is asked about.
    let alone = BindOptions {
        reuse_port: false,
        v6_only: true,
    };
    listen(addr, alone).map(drop)
}

/// Opens a non-blocking UDP socket on `addr` that tells of each datagram the address of ours it was
/// sent to (IP_PKTINFO, IPV6_RECVPKTINFO) and how many the kernel has thrown away (SO_RXQ_OVFL).
///
/// It is closed until it is opened with [`start_receiving`]: what comes before is thrown away. There is no
/// SO_REUSEADDR: for UDP it would let another program share the port in silence.
pub fn listen(addr: SocketAddr, options: BindOptions) -> Result<UdpSocket> {
    let kind = Type::DGRAM.nonblocking().cloexec();
    let socket =
        Socket::new(Domain::for_address(addr), kind, Some(Protocol::UDP)).call("socket(2)")?;
    if addr.is_ipv6() {
        let v6_only = options.v6_only || !addr.ip().is_unspecified();
        socket
            .set_only_v6(v6_only)
            .call("setsockopt(IPV6_V6ONLY)")?;
    }
    enable_control_messages(&socket, addr)?;
    if options.reuse_port {
        socket
            .set_reuse_port(true)
            .call("setsockopt(SO_REUSEPORT)")?;
    }
    discard_all(&socket)?;
    socket.bind(&addr.into()).call("bind(2)")?;
    Ok(socket.into())
}

/// Makes a bound UDP socket on `addr` that was opened by another tell what one made by [`listen`] tells.
pub fn adopt(socket: OwnedFd, addr: SocketAddr) -> Result<UdpSocket> {
    enable_control_messages(&socket, addr)?;
    Ok(socket.into())
}

/// Where datagrams were sent to, and how many were thrown away.
fn enable_control_messages(socket: impl AsFd, addr: SocketAddr) -> Result<()> {
    let socket = socket.as_fd();
    if addr.is_ipv6() {
        set_int(socket, libc::SOL_IPV6, libc::IPV6_RECVPKTINFO, 1)
            .call("setsockopt(IPV6_RECVPKTINFO)")?;
    } else {
        set_int(socket, libc::SOL_IP, libc::IP_PKTINFO, 1).call("setsockopt(IP_PKTINFO)")?;
    }
    enable_drop_count(socket)
}

/// Lets a socket made by [`listen`] receive. Of sockets that share an address, none should before all
/// are there and know which of them is for whom.
pub fn start_receiving(socket: impl AsFd) -> Result<()> {
    SockRef::from(&socket)
        .detach_filter()
        .call("setsockopt(SO_DETACH_FILTER)")
}

/// The firewall mark of what a socket sends (SO_MARK, socket(7)); 0 for none.
pub fn mark(socket: impl AsFd) -> Result<u32> {
    SockRef::from(&socket).mark().call("getsockopt(SO_MARK)")
}

/// Asks for receive and send buffers of `bytes`. The kernel caps them at `net.core.rmem_max` and
/// `net.core.wmem_max` without an error: [`receive_buffer_size`] tells.
pub fn set_buffer_sizes(socket: impl AsFd, bytes: usize) -> Result<()> {
    let socket = SockRef::from(&socket);
    socket
        .set_recv_buffer_size(bytes)
        .call("setsockopt(SO_RCVBUF)")?;
    socket
        .set_send_buffer_size(bytes)
        .call("setsockopt(SO_SNDBUF)")
}

/// Asks for a receive buffer of `bytes`. The kernel caps it at `net.core.rmem_max` without an error:
/// [`receive_buffer`] tells.
///
/// # Errors
///
/// setsockopt(2), for a socket that is none.
pub fn set_receive_buffer(socket: impl AsFd, bytes: usize) -> Result<()> {
    SockRef::from(&socket)
        .set_recv_buffer_size(bytes)
        .call("setsockopt(SO_RCVBUF)")
}

/// What the receive buffer may hold, by the kernel's account, which doubles what was asked for
/// (socket(7)).
pub fn receive_buffer_size(socket: impl AsFd) -> Result<usize> {
    SockRef::from(&socket)
        .recv_buffer_size()
        .call("getsockopt(SO_RCVBUF)")
}

/// Lets the kernel hand over several datagrams of one sender and one size at once (UDP_GRO, since
/// Linux 5.0); [`RecvMeta::segment`] says where to cut.
pub fn enable_gro(socket: impl AsFd) -> Result<()> {
    set_int(socket.as_fd(), libc::SOL_UDP, libc::UDP_GRO, 1).call("setsockopt(UDP_GRO)")
}

/// Whether this kernel cuts a large datagram into several of one size (UDP_SEGMENT, since Linux 4.18).
pub fn supports_gso() -> bool {
    let probe = UdpSocket::bind(SocketAddr::new(IpAddr::from([127, 0, 0, 1]), 0));
    probe.is_ok_and(|socket| {
        set_int(
            socket.as_fd(),
            libc::SOL_UDP,
            libc::UDP_SEGMENT,
            PROBE_SEGMENT_SIZE,
        )
        .is_ok()
    })
}

/// Any size of a segment does for the probe.
const PROBE_SEGMENT_SIZE: libc::c_int = 1200;
