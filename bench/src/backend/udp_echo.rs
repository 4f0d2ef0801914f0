//! The UDP side of the backend: one thread that only receives and sends.
//!
//! One blocking `recvfrom`, one `sendto`, and no epoll: the minimum for an echo server without batches. Batches would make
//! `direct` faster than most servers are, and the ratio of a proxy to it worse; either figure would then measure the
//! backend.

use std::net::{SocketAddr, SocketAddrV4, UdpSocket};

use anyhow::{Context, Result};
use socket2::{Domain, Protocol, SockRef, Socket, Type};

use crate::backend::tally::Tally;
use crate::wire::datagram::{self, DatagramKind};

/// Binds the socket for [`serve`].
pub(crate) fn bind(address: SocketAddr) -> Result<UdpSocket> {
    let domain = Domain::for_address(address);
    let socket = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))?;
    enlarge_receive_buffer(&socket)?;
    socket
        .bind(&address.into())
        .with_context(|| format!("bind({address}) for UDP"))?;
    Ok(socket.into())
}

/// Handles datagrams by their kind, until receiving fails. An unknown datagram is echoed and counted: the generator
/// verifies, and so has to see it.
pub(crate) fn serve(socket: &UdpSocket) -> Result<()> {
    let mut tally = Tally::default();
    let mut buffer = [0; datagram::MAX_BYTES];
    loop {
        let (length, peer) = socket.recv_from(&mut buffer).context("recvfrom")?;
        let SocketAddr::V4(peer) = peer else { continue };
        let bytes = &mut buffer[..length];
        match DatagramKind::parse(bytes) {
            Some(DatagramKind::Echo) => reply(socket, bytes, peer),
            Some(DatagramKind::Stream) => tally.count(bytes, peer),
            Some(DatagramKind::SourceQuery) => {
                datagram::write_peer(bytes, peer);
                reply(socket, bytes, peer);
            }
            Some(DatagramKind::ResetTally) => {
                tally = Tally::default();
                reply(socket, &serde_json::to_vec(&tally.report())?, peer);
            }
            Some(DatagramKind::TallyQuery) => {
                reply(socket, &serde_json::to_vec(&tally.report())?, peer);
            }
            None => {
                tally.unknown += 1;
                reply(socket, bytes, peer);
            }
        }
    }
}

/// Sends a reply. One that can't be sent is lost, which the generator detects.
fn reply(socket: &UdpSocket, bytes: &[u8], peer: SocketAddrV4) {
    let _ = socket.send_to(bytes, peer);
}

/// Enlarges the receive buffer: a datagram that the sink loses would count as lost by the proxy. Only root may exceed
/// the machine's limit; other users get what the limit allows.
fn enlarge_receive_buffer(socket: &Socket) -> Result<()> {
    let force = rustix::net::sockopt::set_socket_recv_buffer_size_force;
    if force(socket, RECEIVE_BUFFER_BYTES).is_err() {
        SockRef::from(socket)
            .set_recv_buffer_size(RECEIVE_BUFFER_BYTES)
            .context("setsockopt(SO_RCVBUF)")?;
    }
    Ok(())
}

/// Some thousand datagrams of 1,200 B, with the kernel's overhead for each: the sink may be off the processor for a few
/// milliseconds.
const RECEIVE_BUFFER_BYTES: usize = 8 << 20;
