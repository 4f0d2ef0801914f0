//! UDP sockets: listening, and batches of datagrams for listeners and sessions.
//!
//! One system call receives or sends a batch of datagrams, each with its local address (IP_PKTINFO). Runs of datagrams
//! of one size are received and sent as one where the kernel supports it (UDP_GRO, UDP_SEGMENT). A filter selects the
//! worker that gets a datagram ([`steering`]).

mod control;
mod recv_batch;
mod send_batch;
pub mod steering;

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};

use socket2::{Protocol, SockRef, Type};

use crate::socket::{self, BindOptions, discard_all, set_int};
use crate::{NameCall, Result};

pub use control::PktInfo;
pub use recv_batch::{RecvBatch, RecvMeta};
pub use send_batch::{SendBatch, Transmit};

/// Makes received datagrams report how many the kernel has dropped at the socket (SO_RXQ_OVFL, since
/// Linux 2.6.33).
pub fn enable_drop_count(socket: impl AsFd) -> Result<()> {
    set_int(socket.as_fd(), libc::SOL_SOCKET, libc::SO_RXQ_OVFL, 1).call("setsockopt(SO_RXQ_OVFL)")
}

/// Checks that no socket receives on `addr`, not even with SO_REUSEPORT.
pub fn check_address_free(addr: SocketAddr) -> Result<()> {
    listen(addr, BindOptions::ALONE).map(drop)
}

/// Opens a non-blocking UDP socket on `addr` that reports the local address of each datagram (IP_PKTINFO,
/// IPV6_RECVPKTINFO) and the number of drops (SO_RXQ_OVFL).
///
/// It discards everything until [`start_receiving`]. SO_REUSEADDR is not set: for UDP it would let another program share
/// the port silently.
///
/// # Errors
///
/// EADDRINUSE, EADDRNOTAVAIL, EACCES for a privileged port; EMFILE or ENFILE.
pub fn listen(addr: SocketAddr, options: BindOptions) -> Result<UdpSocket> {
    let socket = socket::open(addr, Type::DGRAM, Protocol::UDP)?;
    options.set_on(&socket, addr)?;
    enable_control_messages(&socket, addr)?;
    discard_all(&socket)?;
    socket.bind(&addr.into()).call("bind(2)")?;
    Ok(socket.into())
}

/// Adopts a bound UDP socket on `addr` that another process opened: makes it report what a socket of [`listen`] reports.
///
/// # Errors
///
/// Those of setsockopt(2): not a UDP socket.
pub fn adopt(socket: OwnedFd, addr: SocketAddr) -> Result<UdpSocket> {
    enable_control_messages(&socket, addr)?;
    Ok(socket.into())
}

/// Makes received datagrams report their local address and the number of drops.
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

/// Lets a socket of [`listen`] receive. Sockets that share an address should not receive before all of them are bound and
/// steered.
///
/// # Errors
///
/// ENOENT if it receives already.
pub fn start_receiving(socket: impl AsFd) -> Result<()> {
    SockRef::from(&socket)
        .detach_filter()
        .call("setsockopt(SO_DETACH_FILTER)")
}

/// The firewall mark of a socket's packets (SO_MARK, socket(7)); 0 for none.
pub fn mark(socket: impl AsFd) -> Result<u32> {
    SockRef::from(&socket).mark().call("getsockopt(SO_MARK)")
}

/// Requests receive and send buffers of `bytes`. The kernel caps them at `net.core.rmem_max` and
/// `net.core.wmem_max` without an error: read [`receive_buffer_size`].
pub fn set_buffer_sizes(socket: impl AsFd, bytes: usize) -> Result<()> {
    set_receive_buffer(socket.as_fd(), bytes)?;
    SockRef::from(&socket)
        .set_send_buffer_size(bytes)
        .call("setsockopt(SO_SNDBUF)")
}

/// Requests a receive buffer of `bytes`. The kernel caps it at `net.core.rmem_max` without an error:
/// [`receive_buffer_size`] returns the result.
pub fn set_receive_buffer(socket: impl AsFd, bytes: usize) -> Result<()> {
    SockRef::from(&socket)
        .set_recv_buffer_size(bytes)
        .call("setsockopt(SO_RCVBUF)")
}

/// The size of the receive buffer by the kernel's accounting, which doubles the requested size
/// (socket(7)).
pub fn receive_buffer_size(socket: impl AsFd) -> Result<usize> {
    SockRef::from(&socket)
        .recv_buffer_size()
        .call("getsockopt(SO_RCVBUF)")
}

/// Enables generic receive offload: several datagrams of one sender and one size are received as one (UDP_GRO, since
/// Linux 5.0); [`RecvMeta::segment`] is their size.
///
/// # Errors
///
/// ENOPROTOOPT before Linux 5.0.
pub fn enable_gro(socket: impl AsFd) -> Result<()> {
    set_int(socket.as_fd(), libc::SOL_UDP, libc::UDP_GRO, 1).call("setsockopt(UDP_GRO)")
}

/// Whether this kernel supports generic segmentation offload: it cuts a large datagram into several of one size
/// (UDP_SEGMENT, since Linux 4.18).
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

/// Any segment size does for the probe.
const PROBE_SEGMENT_SIZE: libc::c_int = 1200;
