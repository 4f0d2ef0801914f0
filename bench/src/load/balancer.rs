//! A simulated UDP balancer: its sockets, and the clients that it forwards for.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::backend::tally::STREAM_DATAGRAM_BYTES;
use crate::load::connection::{MESSAGE_BYTES, claimed_source, source_address};
use crate::load::spec::{LoadSpec, Preface};
use crate::wire::datagram::{self, DatagramKind, TAG_BYTES, Tag};

/// How a balancer assigns its sockets to clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SocketLayout {
    /// A socket for each client, as most do.
    PerClient,
    /// One socket for all clients: the proxy sees one address and port, and has only the headers to distinguish them.
    Shared,
}

/// Sockets and clients; each client has reached the backend once.
pub(crate) struct Balancer {
    sockets: Vec<UdpSocket>,
    pub(crate) clients: Vec<Client>,
}

/// One client behind the balancer.
pub(crate) struct Client {
    pub(crate) serial: u32,
    /// The source that the backend saw.
    pub(crate) seen: SocketAddrV4,
    /// The sequence number of the next datagram.
    next: u64,
    /// The PROXY header, which does not change, followed by the datagram.
    buffer: Vec<u8>,
    header_length: usize,
}

impl Balancer {
    /// Opens the sockets, and has each client query the backend for its observed source, so that the path is
    /// established before the measured interval. The sockets are non-blocking afterwards.
    pub(crate) fn open(
        spec: &LoadSpec,
        serials: RangeInclusive<u32>,
        layout: SocketLayout,
    ) -> Result<Self> {
        let clients: Vec<_> = serials
            .map(|serial| Client::new(spec.preface, serial))
            .collect();
        let socket_count = match layout {
            SocketLayout::PerClient => clients.len(),
            SocketLayout::Shared => 1,
        };
        let sockets = clients[..socket_count]
            .iter()
            .map(|client| open_socket(spec, client.serial))
            .collect::<Result<_>>()?;
        let mut balancer = Self { sockets, clients };
        for index in 0..balancer.clients.len() {
            let socket = &balancer.sockets[balancer.socket_index(index)];
            let client = &mut balancer.clients[index];
            client
                .query_source(socket)
                .with_context(|| format!("client {} to {}", client.serial, spec.target))?;
        }
        if spec.preface == Preface::Proxy {
            balancer.verify_distinct_sources()?;
        }
        for socket in &balancer.sockets {
            socket.set_nonblocking(true)?;
        }
        Ok(balancer)
    }

    pub(crate) fn sockets(&self) -> &[UdpSocket] {
        &self.sockets
    }

    /// The index of the socket that client number `index` uses.
    pub(crate) fn socket_index(&self, index: usize) -> usize {
        index.min(self.sockets.len() - 1)
    }

    /// How many clients share one socket.
    pub(crate) fn clients_per_socket(&self) -> usize {
        self.clients.len() / self.sockets.len()
    }

    /// Sends the client's next datagram and returns its sequence number. None if the socket buffer is full.
    ///
    /// # Errors
    /// The socket failed; a closed port at the peer is reported this way, too.
    pub(crate) fn send(
        &mut self,
        index: usize,
        kind: DatagramKind,
        length: usize,
    ) -> Result<Option<u64>> {
        let token = self.socket_index(index);
        let (sequence, bytes) = self.clients[index].next_datagram(kind, length);
        match self.sockets[token].send(bytes) {
            Ok(_) => Ok(Some(sequence)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error).context("send"),
        }
    }

    /// Checks that no client was seen with another client's source.
    fn verify_distinct_sources(&self) -> Result<()> {
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
        let header_length = buffer.len();
        buffer.resize(header_length + STREAM_DATAGRAM_BYTES, 0);
        Self {
            serial,
            seen: SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0),
            next: 0,
            buffer,
            header_length,
        }
    }

    /// Writes the next datagram; returns its sequence number and its bytes, header included. `length` is without the
    /// header, from [`TAG_BYTES`] to [`STREAM_DATAGRAM_BYTES`].
    fn next_datagram(&mut self, kind: DatagramKind, length: usize) -> (u64, &[u8]) {
        let tag = Tag {
            kind,
            serial: self.serial,
            sequence: self.next,
        };
        self.next += 1;
        let end = self.header_length + length.clamp(TAG_BYTES, STREAM_DATAGRAM_BYTES);
        tag.write(&mut self.buffer[self.header_length..end]);
        (tag.sequence, &self.buffer[..end])
    }

    /// Queries the backend until it replies with the source that it sees.
    fn query_source(&mut self, socket: &UdpSocket) -> Result<()> {
        let deadline = Instant::now() + OPEN_TIMEOUT;
        let mut stray = String::new();
        let mut buffer = [0; datagram::MAX_BYTES];
        while Instant::now() < deadline {
            let (_, query) = self.next_datagram(DatagramKind::SourceQuery, MESSAGE_BYTES);
            socket.send(query).context("send")?;
            let Some(length) = none_if_would_block(socket.recv(&mut buffer)).context("recv")?
            else {
                continue;
            };
            let reply = &buffer[..length];
            let tag = Tag::read(reply)?;
            if tag.serial == self.serial && tag.kind == DatagramKind::SourceQuery {
                self.seen = datagram::read_peer(reply).context("half an answer")?;
                return Ok(());
            }
            stray = format!(", but one for client {}", tag.serial);
        }
        bail!("no answer within {OPEN_TIMEOUT:?}{stray}");
    }
}

/// Maps EAGAIN, an empty socket or a read timeout, to None.
pub(crate) fn none_if_would_block(result: io::Result<usize>) -> io::Result<Option<usize>> {
    match result {
        Ok(length) => Ok(Some(length)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}

/// The source that the backend sees for client number 0, which the workloads leave free.
pub(crate) fn observed_source(spec: &LoadSpec) -> Result<SocketAddrV4> {
    let balancer = Balancer::open(spec, 0..=0, SocketLayout::PerClient)?;
    let client = balancer.clients.first();
    Ok(client.context("a balancer without clients")?.seen)
}

fn open_socket(spec: &LoadSpec, serial: u32) -> Result<UdpSocket> {
    let source = SocketAddrV4::new(source_address(serial.into()), 0);
    let socket = UdpSocket::bind(source).with_context(|| format!("bind({source})"))?;
    // A connected socket takes no datagrams from other addresses, and reports a closed port.
    socket
        .connect(spec.target)
        .with_context(|| format!("connect({})", spec.target))?;
    socket.set_read_timeout(Some(REPLY_TIMEOUT))?;
    Ok(socket)
}

/// A version 2 header (PROXY protocol specification, section 2.2): signature, version 2 and PROXY, UDP over IPv4, 12 bytes
/// of addresses. Written by hand: the codec under test must not be the one that tests it.
pub(crate) fn v2_header(source: SocketAddrV4) -> [u8; 28] {
    let mut header = *b"\r\n\r\n\0\r\nQUIT\n\x21\x12\0\x0cSSSSDDDDssdd";
    header[16..20].copy_from_slice(&source.ip().octets());
    header[20..24].copy_from_slice(&[192, 0, 2, 1]);
    header[24..26].copy_from_slice(&source.port().to_be_bytes());
    header[26..28].copy_from_slice(&443_u16.to_be_bytes());
    header
}

/// How long the first reply may take: a proxy may have to add routes before it.
const OPEN_TIMEOUT: Duration = Duration::from_secs(5);

/// How long one query waits for its reply before it is retried.
pub(crate) const REPLY_TIMEOUT: Duration = Duration::from_millis(200);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn v2_header_matches_the_specification() {
        let header = v2_header("10.1.0.1:1025".parse().unwrap());
        let written: Vec<String> = header.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(
            written.join(" "),
            "0d 0a 0d 0a 00 0d 0a 51 55 49 54 0a 21 12 00 0c 0a 01 00 01 c0 00 02 01 04 01 01 bb"
        );
    }
}
