//! The yardstick for UDP: the relay that anybody would write first.
//!
//! epoll, one `recvfrom` and one `sendto` for each datagram, a connected transparent socket for each
//! client. It asks nobody for trust, looks at no byte of the header but address and port, and never
//! forgets a client: so what it spends is what the kernel asks for this way of working, and nearly
//! nothing else. It is not a relay to use.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::time::Duration;

use anyhow::{Context, Result};
use socket2::{Domain, Protocol, Socket, Type};

use crate::datagram::LONGEST;
use crate::poller::{Interest, Poller};

/// `peername-bench naive-udp`
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Where to listen
    #[arg(long, value_name = "ADDR")]
    listen: SocketAddrV4,
    /// Where to send what comes
    #[arg(long, value_name = "ADDR")]
    to: SocketAddrV4,
}

/// Relays until it is killed.
///
/// # Errors
/// A call failed, other than for one datagram.
pub(crate) fn run(args: &Args) -> Result<()> {
    let mut relay = Relay::listen(args)?;
    let mut ready = Vec::new();
    loop {
        relay
            .poller
            .wait(FOREVER, &mut ready)
            .context("epoll_wait")?;
        for &(token, _) in &ready {
            match token {
                LISTENER => relay.inbound()?,
                token => relay.outbound(token),
            }
        }
    }
}

struct Relay {
    to: SocketAddrV4,
    listener: UdpSocket,
    poller: Poller,
    sessions: Vec<Session>,
    /// Where in `sessions` a client is.
    clients: HashMap<SocketAddrV4, usize>,
    buffer: Box<[u8; LONGEST]>,
}

struct Session {
    upstream: UdpSocket,
    /// Where the client's last datagram came from, and so where answers go.
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
            buffer: Box::new([0; LONGEST]),
        })
    }

    /// Takes what is there, in one wake-up for many datagrams, but leaves answers their turn.
    fn inbound(&mut self) -> Result<()> {
        for _ in 0..TURN {
            let (length, balancer) = match self.listener.recv_from(&mut self.buffer[..]) {
                Ok(received) => received,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error).context("recvfrom"),
            };
            let Some((header, payload)) = self.buffer[..length].split_first_chunk() else {
                continue;
            };
            let client = client(header);
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
            // A full buffer or an ICMP error loses the datagram, as it would anywhere.
            let _ = session.upstream.send(payload);
        }
        Ok(())
    }

    /// One datagram; if there are more, epoll says so again. A second `recvfrom` to find out would
    /// be in vain as a rule.
    fn outbound(&mut self, token: usize) {
        let Session { upstream, balancer } = &self.sessions[token];
        if let Ok(length) = upstream.recv(&mut self.buffer[..]) {
            let _ = self.listener.send_to(&self.buffer[..length], *balancer);
        }
    }
}

/// The source address and port of a version 2 header for UDP over IPv4, at their fixed offsets
/// (PROXY protocol, section 2.2).
fn client(header: &[u8; HEADER]) -> SocketAddrV4 {
    let [.., a, b, c, d, _, _, _, _, high, low, _, _] = *header;
    SocketAddrV4::new(Ipv4Addr::new(a, b, c, d), u16::from_be_bytes([high, low]))
}

/// A socket that is the client towards `to`.
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

/// Signature, version, family, length, two addresses and two ports, and no TLVs.
const HEADER: usize = 28;

/// No session gets this number.
const LISTENER: usize = usize::MAX;

/// Datagrams taken in a row. More would let answers wait.
const TURN: usize = 64;

const FOREVER: Duration = Duration::from_secs(3600);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::v2_header;

    #[test]
    fn finds_the_client() {
        let source = "10.1.2.3:4567".parse().unwrap();
        assert_eq!(client(&v2_header(source)), source);
    }
}
