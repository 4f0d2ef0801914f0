//! One client connection, and the positions in its byte pattern.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::io::Errno;
use socket2::{Domain, Protocol, Socket, Type};

use crate::backend::zero_if_would_block;
use crate::load::spec::{LoadSpec, Preface};
use crate::wire::pattern;

/// A socket that sends the byte pattern and verifies its echo.
pub(crate) struct Connection {
    socket: Socket,
    serial: u64,
    /// The position in the pattern of the first byte.
    origin: u64,
    sent: u64,
    received: u64,
}

impl Connection {
    /// Connects, sends the preface and one message, and waits for its echo, so that the path to the backend is
    /// established before the measured interval. The connection is non-blocking afterwards.
    pub(crate) fn open(spec: &LoadSpec, serial: u64) -> Result<Self> {
        let mut connection = Self::unconnected(serial)?;
        connection
            .open_blocking(spec)
            .with_context(|| format!("connection {serial} to {}", spec.target))?;
        connection.socket.set_nonblocking(true)?;
        Ok(connection)
    }

    /// Starts to connect, without waiting. [`request`](Self::request) may follow at once.
    pub(crate) fn begin(spec: &LoadSpec, serial: u64) -> Result<Self> {
        let connection = Self::unconnected(serial)?;
        connection.socket.set_nonblocking(true)?;
        match connection.socket.connect(&spec.target.into()) {
            Err(error) if error.raw_os_error() != Some(Errno::INPROGRESS.raw_os_error()) => {
                Err(error).with_context(|| format!("connect({})", spec.target))
            }
            _ => Ok(connection),
        }
    }

    /// Sends the preface and the first message in one write. False if the socket is not connected yet.
    pub(crate) fn request(&mut self, spec: &LoadSpec) -> Result<bool> {
        let mut request = match spec.preface {
            Preface::None => String::new(),
            Preface::Proxy => v1_header(self.serial),
        }
        .into_bytes();
        request.extend_from_slice(pattern::bytes_at(self.origin, MESSAGE_BYTES));
        match zero_if_would_block(self.socket.write(&request)).context("send")? {
            0 => Ok(false),
            sent if sent == request.len() => {
                self.sent += MESSAGE_BYTES as u64;
                Ok(true)
            }
            sent => bail!(
                "an empty socket buffer took {sent} of {} bytes",
                request.len()
            ),
        }
    }

    /// Sends up to `length` more bytes and returns how many were sent; 0 if the socket buffer is full.
    pub(crate) fn send(&mut self, length: usize) -> Result<usize> {
        let bytes = pattern::bytes_at(self.origin + self.sent, length);
        let sent = zero_if_would_block(self.socket.write(bytes)).context("send")?;
        self.sent += sent as u64;
        Ok(sent)
    }

    /// Receives into `scratch`, verifies, and returns how many bytes arrived; 0 if none are available.
    pub(crate) fn receive(&mut self, scratch: &mut [u8]) -> Result<usize> {
        let received = match self.socket.read(scratch) {
            Ok(0) => bail!(
                "closed by the peer with {} bytes outstanding",
                self.outstanding()
            ),
            other => zero_if_would_block(other).context("recv")?,
        };
        pattern::verify(self.origin + self.received, &scratch[..received])
            .with_context(|| format!("after {} good bytes", self.received))?;
        self.received += received as u64;
        if self.received > self.sent {
            bail!("{} bytes came back, {} were sent", self.received, self.sent);
        }
        Ok(received)
    }

    /// The number of bytes sent that have not come back.
    pub(crate) fn outstanding(&self) -> u64 {
        self.sent.saturating_sub(self.received)
    }

    /// The serial number that the connection was opened with.
    pub(crate) fn serial(&self) -> u64 {
        self.serial
    }

    fn unconnected(serial: u64) -> Result<Self> {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?;
        socket.set_tcp_nodelay(true)?;
        socket
            .bind(&SocketAddrV4::new(source_address(serial), 0).into())
            .context("bind")?;
        let origin = pattern::start_of(serial);
        Ok(Self {
            socket,
            serial,
            origin,
            sent: 0,
            received: 0,
        })
    }

    fn open_blocking(&mut self, spec: &LoadSpec) -> Result<()> {
        self.socket.set_read_timeout(Some(OPEN_TIMEOUT))?;
        self.socket
            .connect_timeout(&spec.target.into(), OPEN_TIMEOUT)
            .context("connect")?;
        self.request(spec)?;
        let mut scratch = [0; MESSAGE_BYTES];
        while self.outstanding() > 0 {
            if self.receive(&mut scratch)? == 0 {
                bail!("no echo within {OPEN_TIMEOUT:?}");
            }
        }
        Ok(())
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The loopback address that connection `serial` really comes from.
pub(crate) fn source_address(serial: u64) -> Ipv4Addr {
    Ipv4Addr::new(127, 0, 1, 1 + (serial % SOURCE_ADDRESSES) as u8)
}

/// The client that connection `serial` claims to come from. It is unique for serials below 3.9 billion, so a proxy
/// never has to bind the same address and port twice.
pub(crate) fn claimed_source(serial: u64) -> SocketAddrV4 {
    let host = 1 + (serial % CLAIMED_HOSTS) as u32;
    let port = 1024 + (serial % CLAIMED_PORTS) as u16;
    SocketAddrV4::new(Ipv4Addr::from_bits(CLAIMED_NETWORK.to_bits() + host), port)
}

/// A version 1 header (PROXY protocol specification, section 2.1). Written by hand: the codec under test must not be
/// the one that tests it.
fn v1_header(serial: u64) -> String {
    let source = claimed_source(serial);
    let mut line = String::with_capacity(64);
    let _ = write!(
        line,
        "PROXY TCP4 {} 192.0.2.1 {} 443\r\n",
        source.ip(),
        source.port()
    );
    line
}

/// The length of one message. Small enough that its cost is that of a wake-up and two system calls.
pub(crate) const MESSAGE_BYTES: usize = 64;

/// How long opening may take. Longer than a lost SYN costs (1 s), so that a lost SYN shows in the figures and does not
/// fail the run.
const OPEN_TIMEOUT: Duration = Duration::from_secs(5);

/// Clients connect from this many loopback addresses. From a single address, a few seconds of
/// `churn` would use up the ports, and measure the search for a free one.
const SOURCE_ADDRESSES: u64 = 64;

/// Claimed clients: 10.1.0.1 and following. Hosts and ports advance together. The number of hosts is prime, so a pair
/// repeats only after the product of the two numbers.
const CLAIMED_NETWORK: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 0);
const CLAIMED_HOSTS: u64 = 65_521;
const CLAIMED_PORTS: u64 = 60_000;

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn v1_header_matches_the_specification() {
        assert_eq!(v1_header(0), "PROXY TCP4 10.1.0.1 192.0.2.1 1024 443\r\n");
        assert_eq!(
            v1_header(65_520),
            "PROXY TCP4 10.1.255.241 192.0.2.1 6544 443\r\n"
        );
    }

    #[test]
    fn claimed_sources_do_not_repeat() {
        let count = 300_000;
        let distinct: HashSet<_> = (0..count).map(claimed_source).collect();
        assert_eq!(distinct.len() as u64, count);
    }
}
