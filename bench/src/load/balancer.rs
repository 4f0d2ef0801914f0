//! A balancer's side of UDP: its sockets, and the clients it speaks for.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::backend::STREAMED;
use crate::datagram::{self, Kind, TAG, Tag};
use crate::load::connection::{MESSAGE, source_address};
use crate::load::{Plan, Preface, claimed_source};

/// How a balancer tells its clients' answers apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sockets {
    /// A socket for each client, as most do.
    Each,
    /// One socket for all: the proxy sees one address and port, and has only the headers.
    Shared,
}

/// Sockets and clients, ready: each client has reached the backend once.
pub(crate) struct Balancer {
    sockets: Vec<UdpSocket>,
    pub(crate) clients: Vec<Client>,
}

/// One client behind the balancer.
pub(crate) struct Client {
    pub(crate) serial: u32,
    /// Which address the backend saw.
    pub(crate) seen: SocketAddrV4,
    next: u64,
    /// The header, which stays, and behind it the datagram.
    buffer: Vec<u8>,
    header: usize,
}

impl Balancer {
    /// Opens the sockets and has each client ask the backend whom it sees. So the way there stands
    /// before anything is measured. Does not block afterwards.
    ///
    /// # Errors
    /// A call failed, no answer came within [`PATIENCE`], or the backend took a client for another.
    pub(crate) fn open(
        plan: &Plan,
        serials: RangeInclusive<u32>,
        sockets: Sockets,
    ) -> Result<Self> {
        let clients: Vec<_> = serials
            .map(|serial| Client::new(plan.preface, serial))
            .collect();
        let opened = match sockets {
            Sockets::Each => clients.len(),
            Sockets::Shared => 1,
        };
        let sockets = clients[..opened]
            .iter()
            .map(|client| socket(plan, client.serial))
            .collect::<Result<_>>()?;
        let mut balancer = Self { sockets, clients };
        for index in 0..balancer.clients.len() {
            let socket = &balancer.sockets[balancer.token(index)];
            let client = &mut balancer.clients[index];
            client
                .introduce(socket)
                .with_context(|| format!("client {} to {}", client.serial, plan.target))?;
        }
        if plan.preface == Preface::Proxy {
            balancer.tell_apart()?;
        }
        for socket in &balancer.sockets {
            socket.set_nonblocking(true)?;
        }
        Ok(balancer)
    }

    pub(crate) fn sockets(&self) -> &[UdpSocket] {
        &self.sockets
    }

    /// The number of the socket that client number `index` of this balancer uses.
    pub(crate) fn token(&self, index: usize) -> usize {
        index.min(self.sockets.len() - 1)
    }

    /// How many clients share one socket.
    pub(crate) fn sharers(&self) -> usize {
        self.clients.len() / self.sockets.len()
    }

    /// Sends the client's next datagram and returns its number. None: no room in the socket buffer.
    ///
    /// # Errors
    /// The socket failed; that nobody listens any more comes this way, too.
    pub(crate) fn send(&mut self, index: usize, kind: Kind, length: usize) -> Result<Option<u64>> {
        let token = self.token(index);
        let (sequence, bytes) = self.clients[index].datagram(kind, length);
        match self.sockets[token].send(bytes) {
            Ok(_) => Ok(Some(sequence)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error).context("send"),
        }
    }

    /// # Errors
    /// The backend saw one client under the address that another one claims.
    fn tell_apart(&self) -> Result<()> {
        for client in &self.clients {
            let other = self.clients.iter().find(|other| {
                other.serial != client.serial && client.seen == claimed_source(other.serial.into())
            });
            if let Some(other) = other {
                bail!(
                    "misdelivered: the backend took client {} for client {}",
                    client.serial,
                    other.serial
                );
            }
        }
        Ok(())
    }
}

impl Client {
    fn new(preface: Preface, serial: u32) -> Self {
        let mut buffer = match preface {
            Preface::None => Vec::new(),
            Preface::Proxy => v2_header(claimed_source(serial.into())).to_vec(),
        };
        let header = buffer.len();
        buffer.resize(header + STREAMED, 0);
        Self {
            serial,
            seen: SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0),
            next: 0,
            buffer,
            header,
        }
    }

    /// The next datagram, header and all, and its number. `length` is without the header, from
    /// [`TAG`] to [`STREAMED`].
    fn datagram(&mut self, kind: Kind, length: usize) -> (u64, &[u8]) {
        let tag = Tag {
            kind,
            serial: self.serial,
            sequence: self.next,
        };
        self.next += 1;
        let end = self.header + length.clamp(TAG, STREAMED);
        tag.write(&mut self.buffer[self.header..end]);
        (tag.sequence, &self.buffer[..end])
    }

    /// Asks until the backend has said whom it sees.
    fn introduce(&mut self, socket: &UdpSocket) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        let mut stray = String::new();
        let mut buffer = [0; datagram::LONGEST];
        while Instant::now() < deadline {
            let (_, question) = self.datagram(Kind::Who, MESSAGE);
            socket.send(question).context("send")?;
            let Some(length) = arrived(socket.recv(&mut buffer)).context("recv")? else {
                continue;
            };
            let answer = &buffer[..length];
            let tag = Tag::read(answer)?;
            if tag.serial == self.serial && tag.kind == Kind::Who {
                self.seen = datagram::read_peer(answer).context("half an answer")?;
                return Ok(());
            }
            stray = format!(", but one for client {}", tag.serial);
        }
        bail!("no answer within {PATIENCE:?}{stray}");
    }
}

/// Nothing there, or not in time, is None rather than an error.
pub(crate) fn arrived(result: io::Result<usize>) -> io::Result<Option<usize>> {
    match result {
        Ok(length) => Ok(Some(length)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}

/// Which address the backend sees when client number 0 sends, which the workloads leave free.
///
/// # Errors
/// As [`Balancer::open`].
pub(crate) fn seen(plan: &Plan) -> Result<SocketAddrV4> {
    let balancer = Balancer::open(plan, 0..=0, Sockets::Each)?;
    let client = balancer.clients.first();
    Ok(client.context("a balancer without clients")?.seen)
}

fn socket(plan: &Plan, serial: u32) -> Result<UdpSocket> {
    let source = SocketAddrV4::new(source_address(serial.into()), 0);
    let socket = UdpSocket::bind(source).with_context(|| format!("bind({source})"))?;
    // From other addresses nothing is taken then, and a closed port is reported.
    socket
        .connect(plan.target)
        .with_context(|| format!("connect({})", plan.target))?;
    socket.set_read_timeout(Some(RETRY))?;
    Ok(socket)
}

/// PROXY protocol, section 2.2: signature, version 2 and PROXY, UDP over IPv4, 12 bytes of addresses.
/// Written by hand: the codec under test must not be the one that tests it.
pub(crate) fn v2_header(source: SocketAddrV4) -> [u8; 28] {
    let mut header = *b"\r\n\r\n\0\r\nQUIT\n\x21\x12\0\x0cSSSSDDDDssdd";
    header[16..20].copy_from_slice(&source.ip().octets());
    header[20..24].copy_from_slice(&[192, 0, 2, 1]);
    header[24..26].copy_from_slice(&source.port().to_be_bytes());
    header[26..28].copy_from_slice(&443_u16.to_be_bytes());
    header
}

/// How long the first answer may take. A proxy may have routes to set before it.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long one question waits for its answer.
pub(crate) const RETRY: Duration = Duration::from_millis(200);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_is_what_the_specification_says() {
        let header = v2_header("10.1.0.1:1025".parse().unwrap());
        let written: Vec<String> = header.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(
            written.join(" "),
            "0d 0a 0d 0a 00 0d 0a 51 55 49 54 0a 21 12 00 0c 0a 01 00 01 c0 00 02 01 04 01 01 bb"
        );
    }
}
