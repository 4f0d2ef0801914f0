//! The UDP baseline: the simplest possible relay.
//!
//! epoll, one `recvfrom` and one `sendto` for each datagram, a connected transparent socket for each client. It checks no
//! trust, reads nothing of the header but address and port, and never expires a session: so it spends what the kernel
//! takes for this design, and hardly more. It is not meant for use.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::time::Duration;

use anyhow::{Context, Result};
use socket2::{Domain, Protocol, Socket, Type};

use crate::host::poller::{Interest, Poller};
use crate::wire::datagram::MAX_BYTES;

/// `peername-bench naive-udp`
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Where to listen
    #[arg(long, value_name = "ADDR")]
    listen: SocketAddrV4,
    /// Where to forward datagrams
    #[arg(long, value_name = "ADDR")]
    to: SocketAddrV4,
}

/// Relays until it is killed.
pub(crate) fn run(args: &Args) -> Result<()> {
    let mut relay = Relay::listen(args)?;
    let mut ready = Vec::new();
    loop {
        relay
            .poller
            .wait(WAIT_TIMEOUT, &mut ready)
            .context("epoll_wait")?;
        for &(token, _) in &ready {
            match token {
                LISTENER => relay.receive_from_balancers()?,
                token => relay.forward_reply(token),
            }
        }
    }
}

struct Relay {
    to: SocketAddrV4,
    listener: UdpSocket,
    poller: Poller,
    sessions: Vec<Session>,
    /// The index in `sessions` of each client.
    clients: HashMap<SocketAddrV4, usize>,
    buffer: Box<[u8; MAX_BYTES]>,
}

struct Session {
    upstream: UdpSocket,
    /// The source of the client's last datagram: replies go there.
    balancer: SocketAddr,
}

impl Relay {
    fn listen(args: &Args) -> Result<Self> {
        let listener =
            UdpSocket::bind(args.listen).with_context(|| format!("bind({})", args.listen))?;
        listener.set_nonblocking(true)?;
        let poller = Poller::new().context("epoll_create")?;
        poller.add(&listener, LISTENER, Interest::IN)?;
        Ok(Self {
            to: args.to,
            listener,
            poller,
            sessions: Vec::new(),
            clients: HashMap::new(),
            buffer: Box::new([0; MAX_BYTES]),
        })
    }

    /// Reads a batch of datagrams for each wake-up, bounded so that replies are not delayed.
    fn receive_from_balancers(&mut self) -> Result<()> {
        for _ in 0..RECEIVE_BATCH {
            let (length, balancer) = match self.listener.recv_from(&mut self.buffer[..]) {
                Ok(received) => received,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error).context("recvfrom"),
            };
            let Some((header, payload)) = self.buffer[..length].split_first_chunk() else {
                continue;
            };
            let client = claimed_client(header);
            let token = match self.clients.entry(client) {
                Entry::Occupied(known) => *known.get(),
                Entry::Vacant(new) => {
                    let upstream = connect(client, self.to)?;
                    let token = self.sessions.len();
                    self.poller.add(&upstream, token, Interest::IN)?;
                    self.sessions.push(Session { upstream, balancer });
                    *new.insert(token)
                }
            };
            let session = &mut self.sessions[token];
            session.balancer = balancer;
            // A full buffer or an ICMP error loses the datagram, as in any relay.
            let _ = session.upstream.send(payload);
        }
        Ok(())
    }

    /// Forwards one datagram; if there are more, epoll reports the socket again. A second `recvfrom` would mostly find
    /// nothing.
    fn forward_reply(&mut self, token: usize) {
        let Session { upstream, balancer } = &self.sessions[token];
        if let Ok(length) = upstream.recv(&mut self.buffer[..]) {
            let _ = self.listener.send_to(&self.buffer[..length], *balancer);
        }
    }
}

/// The source address and port of a version 2 header for UDP over IPv4, at their fixed offsets
/// (PROXY protocol, section 2.2).
fn claimed_client(header: &[u8; HEADER_BYTES]) -> SocketAddrV4 {
    // The last 12 bytes: source address, destination address, source port, destination port.
    let [.., a, b, c, d, _, _, _, _, high, low, _, _] = *header;
    SocketAddrV4::new(Ipv4Addr::new(a, b, c, d), u16::from_be_bytes([high, low]))
}

/// Opens a socket that is bound to the client's address and connected to `to`.
fn connect(client: SocketAddrV4, to: SocketAddrV4) -> Result<UdpSocket> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM.nonblocking(), Some(Protocol::UDP))?;
    socket
        .set_ip_transparent_v4(true)
        .context("setsockopt(IP_TRANSPARENT)")?;
    socket
        .bind(&client.into())
        .with_context(|| format!("bind({client})"))?;
    socket
        .connect(&to.into())
        .with_context(|| format!("connect({to})"))?;
    Ok(socket.into())
}

/// Signature, version, family, length, two addresses and two ports, without TLVs.
const HEADER_BYTES: usize = 28;

/// The token of the listener; no session has it.
const LISTENER: usize = usize::MAX;

/// Datagrams received in a row. More would delay replies.
const RECEIVE_BATCH: usize = 64;

/// The relay has no timers: any long time will do.
const WAIT_TIMEOUT: Duration = Duration::from_secs(3600);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::balancer::v2_header;

    #[test]
    fn client_is_read_from_the_header() {
        let source = "10.1.2.3:4567".parse().unwrap();
        assert_eq!(claimed_client(&v2_header(source)), source);
    }
}
