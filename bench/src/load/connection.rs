//! One client connection and how far its pattern has got in either direction.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::io::Errno;
use socket2::{Domain, Protocol, Socket, Type};

use crate::backend::accepted;
use crate::load::{Plan, Preface};
use crate::pattern;

/// A socket, and where in the pattern the next byte to send and the next to receive are.
pub(crate) struct Connection {
    socket: Socket,
    serial: u64,
    origin: u64,
    sent: u64,
    received: u64,
}

impl Connection {
    /// Connects, sends the preface and one message and takes its echo. So the way to the backend
    /// stands before anything is measured. Does not block afterwards.
    ///
    /// # Errors
    /// A step failed, took more than [`PATIENCE`], or the echo was not what was sent.
    pub(crate) fn open(plan: &Plan, serial: u64) -> Result<Self> {
        let mut connection = Self::unconnected(serial)?;
        connection
            .open_blocking(plan)
            .with_context(|| format!("connection {serial} to {}", plan.target))?;
        connection.socket.set_nonblocking(true)?;
        Ok(connection)
    }

    /// Begins to connect, without waiting. [`request`](Self::request) may follow at once.
    ///
    /// # Errors
    /// No socket, no port left, or refused on the spot.
    pub(crate) fn begin(plan: &Plan, serial: u64) -> Result<Self> {
        let connection = Self::unconnected(serial)?;
        connection.socket.set_nonblocking(true)?;
        match connection.socket.connect(&plan.target.into()) {
            Err(error) if error.raw_os_error() != Some(Errno::INPROGRESS.raw_os_error()) => {
                Err(error).with_context(|| format!("connect({})", plan.target))
            }
            _ => Ok(connection),
        }
    }

    /// Sends the preface and the first message in one piece. False: not connected yet.
    ///
    /// # Errors
    /// The connection failed.
    pub(crate) fn request(&mut self, plan: &Plan) -> Result<bool> {
        let mut request = match plan.preface {
            Preface::None => String::new(),
            Preface::Proxy => header(self.serial),
        }
        .into_bytes();
        request.extend_from_slice(pattern::at(self.origin, MESSAGE));
        match accepted(self.socket.write(&request)).context("send")? {
            0 => Ok(false),
            all if all == request.len() => {
                self.sent += MESSAGE as u64;
                Ok(true)
            }
            some => bail!(
                "an empty socket buffer took {some} of {} bytes",
                request.len()
            ),
        }
    }

    /// Sends up to `length` bytes more and returns how many went; 0 if the buffer is full.
    ///
    /// # Errors
    /// The connection failed.
    pub(crate) fn send(&mut self, length: usize) -> Result<usize> {
        let bytes = pattern::at(self.origin + self.sent, length);
        let sent = accepted(self.socket.write(bytes)).context("send")?;
        self.sent += sent as u64;
        Ok(sent)
    }

    /// Receives into `scratch`, verifies, and returns how many bytes came; 0 if none are there.
    ///
    /// # Errors
    /// The bytes are not those that were sent, or the peer closed.
    pub(crate) fn receive(&mut self, scratch: &mut [u8]) -> Result<usize> {
        let received = match self.socket.read(scratch) {
            Ok(0) => bail!(
                "closed by the peer with {} bytes outstanding",
                self.outstanding()
            ),
            other => accepted(other).context("recv")?,
        };
        pattern::check(self.origin + self.received, &scratch[..received])
            .with_context(|| format!("after {} good bytes", self.received))?;
        self.received += received as u64;
        if self.received > self.sent {
            bail!("{} bytes came back, {} were sent", self.received, self.sent);
        }
        Ok(received)
    }

    /// Bytes sent that have not come back.
    pub(crate) fn outstanding(&self) -> u64 {
        self.sent.saturating_sub(self.received)
    }

    /// The number it was opened with.
    pub(crate) fn serial(&self) -> u64 {
        self.serial
    }

    fn unconnected(serial: u64) -> Result<Self> {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?;
        socket.set_tcp_nodelay(true)?;
        socket
            .bind(&SocketAddrV4::new(source_address(serial), 0).into())
            .context("bind")?;
        let origin = pattern::start(serial);
        Ok(Self {
            socket,
            serial,
            origin,
            sent: 0,
            received: 0,
        })
    }

    fn open_blocking(&mut self, plan: &Plan) -> Result<()> {
        self.socket.set_read_timeout(Some(PATIENCE))?;
        self.socket
            .connect_timeout(&plan.target.into(), PATIENCE)
            .context("connect")?;
        self.request(plan)?;
        let mut scratch = [0; MESSAGE];
        while self.outstanding() > 0 {
            if self.receive(&mut scratch)? == 0 {
                bail!("no echo within {PATIENCE:?}");
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

/// The loopback address that number `serial` is really sent from.
pub(crate) fn source_address(serial: u64) -> Ipv4Addr {
    Ipv4Addr::new(127, 0, 1, 1 + (serial % SOURCES) as u8)
}

/// The client that connection `serial` claims to come from. No two serials below 3.9 thousand
/// million share one, so no proxy ever has to bind the same address and port twice.
pub(crate) fn claimed_source(serial: u64) -> SocketAddrV4 {
    let host = 1 + (serial % CLAIMED_HOSTS) as u32;
    let port = 1024 + (serial % CLAIMED_PORTS) as u16;
    SocketAddrV4::new(Ipv4Addr::from_bits(CLAIMED_NETWORK.to_bits() + host), port)
}

/// PROXY protocol 1, section 2.1 of the specification. Written by hand: the codec under test must
/// not be the one that tests it.
fn header(serial: u64) -> String {
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

/// The length of one message. Small enough that its cost is that of a wake-up and two calls.
pub(crate) const MESSAGE: usize = 64;

/// How long opening may take. Longer than one lost SYN costs (1 s), so that such a thing shows in
/// the figures and does not end the run.
const PATIENCE: Duration = Duration::from_secs(5);

/// Clients connect from this many loopback addresses. From a single one, a few seconds of `churn`
/// would use up the ports and measure the search for a free one.
const SOURCES: u64 = 64;

/// Claimed clients: 10.1.0.1 and following. Hosts and ports advance together and come round
/// together only after their product, as the first is prime.
const CLAIMED_NETWORK: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 0);
const CLAIMED_HOSTS: u64 = 65_521;
const CLAIMED_PORTS: u64 = 60_000;

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn header_is_what_the_specification_says() {
        assert_eq!(header(0), "PROXY TCP4 10.1.0.1 192.0.2.1 1024 443\r\n");
        assert_eq!(
            header(65_520),
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
