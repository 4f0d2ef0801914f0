//! The UDP side of the backend: one thread that does nothing but receive and send.
//!
//! One blocking `recvfrom`, one `sendto`, and no epoll: the least that an echo server can do
//! without batches. Batches would make `direct` look better than most servers are, and the ratio
//! of a proxy to it worse, and would measure the backend in either.

use std::net::{SocketAddr, SocketAddrV4, UdpSocket};

use anyhow::{Context, Result};
use socket2::{Domain, Protocol, SockRef, Socket, Type};

use crate::backend::Tally;
use crate::datagram::{self, Kind};

/// A socket on which [`serve`] can work.
///
/// # Errors
/// The address is taken.
pub(crate) fn bind(address: SocketAddr) -> Result<UdpSocket> {
    let domain = Domain::for_address(address);
    let socket = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))?;
    widen(&socket)?;
    socket
        .bind(&address.into())
        .with_context(|| format!("bind({address}) for UDP"))?;
    Ok(socket.into())
}

/// Does as the datagrams say, until receiving fails. What nobody sent is echoed and counted: the
/// generator is the one that judges, and so gets to see it.
///
/// # Errors
/// Receiving failed.
pub(crate) fn serve(socket: &UdpSocket) -> Result<()> {
    let mut tally = Tally::default();
    let mut buffer = [0; datagram::LONGEST];
    loop {
        let (length, peer) = socket.recv_from(&mut buffer).context("recvfrom")?;
        let SocketAddr::V4(peer) = peer else { continue };
        let bytes = &mut buffer[..length];
        match Kind::of(bytes) {
            Some(Kind::Echo) => answer(socket, bytes, peer),
            Some(Kind::Stream) => tally.count(bytes, peer),
            Some(Kind::Who) => {
                datagram::write_peer(bytes, peer);
                answer(socket, bytes, peer);
            }
            Some(Kind::Begin) => {
                tally = Tally::default();
                answer(socket, &serde_json::to_vec(&tally.report())?, peer);
            }
            Some(Kind::Report) => answer(socket, &serde_json::to_vec(&tally.report())?, peer),
            None => {
                tally.unknown += 1;
                answer(socket, bytes, peer);
            }
        }
    }
}

/// An answer that can't be sent is a lost one, which the generator notices.
fn answer(socket: &UdpSocket, bytes: &[u8], peer: SocketAddrV4) {
    let _ = socket.send_to(bytes, peer);
}

/// What the sink loses, the proxy would be blamed for. Beyond the machine's limit only root may go;
/// others get what the limit allows.
fn widen(socket: &Socket) -> Result<()> {
    let force = rustix::net::sockopt::set_socket_recv_buffer_size_force;
    if force(socket, RECEIVE_BUFFER).is_err() {
        SockRef::from(socket)
            .set_recv_buffer_size(RECEIVE_BUFFER)
            .context("setsockopt(SO_RCVBUF)")?;
    }
    Ok(())
}

/// Some thousand datagrams of 1,200 B, with what the kernel counts for each: the sink may be off the
/// processor for a few milliseconds.
const RECEIVE_BUFFER: usize = 8 << 20;
