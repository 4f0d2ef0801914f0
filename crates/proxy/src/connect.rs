//! The fourth stage: connects to the backend from the client's address (a spoofed source).

mod attempt;
mod datagram;
mod server_side;

use std::io::{self, ErrorKind};
use std::time::Duration;

use peername_relay::Prefix;
use peername_server::addr::Target;
use peername_sys::socket::upstream::is_connected;
use peername_sys::tcp::stream;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep};

pub use attempt::Connector;
use attempt::{ConnectError, Connecting};
use server_side::ServerSide;

use crate::config::UpstreamConfig;
use crate::conn::accept::refuse;
use crate::conn::header::ClaimedConn;
use crate::outcome::Failure;
use crate::policy::permit::{ConfirmedPermit, Permit};
use crate::upstream_stream::{wait_connected, write_header};

/// Both sockets of a connection, and the bytes already read from the client: all that the relay needs.
#[derive(Debug)]
pub struct ConnectedPair {
    pub(crate) downstream: TcpStream,
    pub(crate) upstream: TcpStream,
    /// The client's first bytes, as far as they have been read.
    pub(crate) prefix: Prefix,
}

impl ConnectedPair {
    /// Connects to the permit's target from the permit's source.
    ///
    /// # Errors
    ///
    /// [`Failure::Connect`], [`Failure::ConnectTimeout`], [`Failure::HeaderTimeout`], [`Failure::NoPort`],
    /// [`Failure::PortTaken`], [`Failure::SourceRewritten`], [`Failure::SourceTranslated`], and [`Failure::Local`] if another
    /// system call fails, for example because a capability is missing. The downstream connection is reset.
    pub fn open(
        claimed: ClaimedConn,
        permit: &ConfirmedPermit,
        connector: &Connector,
    ) -> impl Future<Output = Result<Self, Failure>> + Send {
        let ClaimedConn {
            stream: downstream,
            outbound_header,
            mut prefix,
            ..
        } = claimed;
        let permit = permit.as_permit();
        async move {
            match connect(permit, connector, outbound_header.as_deref(), &mut prefix).await {
                Ok(upstream) => Ok(Self {
                    downstream,
                    upstream,
                    prefix,
                }),
                Err(failure) => Err(refuse(&downstream, failure)),
            }
        }
    }
}

async fn connect(
    permit: &Permit,
    connector: &Connector,
    outbound_header: Option<&[u8]>,
    prefix: &mut Prefix,
) -> Result<TcpStream, Failure> {
    let target = permit.target();
    let started = Instant::now();
    let Connecting { upstream, client } = start_connect(permit, connector).await?;
    let server_side =
        client.map(|client| ServerSide::new(target, client, permit.is_target_on_this_host()));
    let first = outbound_header.unwrap_or(&prefix.bytes);
    // The first bytes are sent now if the connection is established and verified. Otherwise nothing is sent before it is both.
    let sent = match send_if_verified(&upstream, target, server_side, first)? {
        Some(sent) => sent,
        None => {
            wait_verified(&upstream, target, server_side, &connector.config).await?;
            0
        }
    };
    connector.counters.count_connected(started.elapsed());
    match outbound_header {
        None => prefix.sent = sent,
        Some(outbound_header) => {
            let rest = outbound_header.get(sent..).unwrap_or_default();
            write_header(&upstream, target, rest, connector.config.connect_timeout).await?;
        }
    }
    Ok(upstream)
}

/// Sends the first bytes without waiting, and returns how many were sent. `None` if the connection is not established yet, or
/// if the backend is not known to see the client.
fn send_if_verified(
    upstream: &TcpStream,
    target: Target,
    server_side: Option<ServerSide>,
    first: &[u8],
) -> Result<Option<usize>, Failure> {
    let is_verified = match server_side {
        Some(server_side) => server_side.sees_client(upstream)?,
        None => true,
    };
    if !is_verified {
        return Ok(None);
    }
    try_send(upstream, first).map_err(|error| Failure::refused(target, error))
}

/// Waits until the connection is established, and verifies that the backend sees the client.
async fn wait_verified(
    upstream: &TcpStream,
    target: Target,
    server_side: Option<ServerSide>,
    config: &UpstreamConfig,
) -> Result<(), Failure> {
    let connected = wait_connected(upstream, target, config.connect_timeout).await;
    if let (Err(Failure::ConnectTimeout { .. }), Some(server_side)) = (&connected, server_side) {
        // A NAT rule may have replaced the client's address by one to which the backend's replies are lost.
        server_side.verify_egress(config.mark)?;
    }
    connected?;
    if let Some(server_side) = server_side {
        server_side
            .verify(upstream, config.mark)
            .inspect_err(|_| drop(stream::reset_on_close(upstream)))?;
    }
    Ok(())
}

/// Sends the first bytes without waiting, and returns how many were sent; `None` while the connection is not
/// established. A connection to this host is established right after connect(2), so this send saves a poll.
fn try_send(upstream: &TcpStream, first: &[u8]) -> io::Result<Option<usize>> {
    if first.is_empty() {
        return Ok(is_connected(upstream).then_some(0));
    }
    match stream::send(upstream, first) {
        Ok(sent) => Ok(Some(sent)),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}

/// Starts to connect. Retries while the 4-tuple is taken, then applies the collision policy.
///
/// Sockets of this process share a client's port (SO_REUSEADDR) as long as their 4-tuples differ. So a collision has
/// one of two causes. A connection of this process has the same 4-tuple; it may be closing, so a retry helps. Or a
/// socket of another program has the port, and a retry is of no use.
async fn start_connect(permit: &Permit, connector: &Connector) -> Result<Connecting, Failure> {
    let target = permit.target().0;
    let Some(source) = permit.bind_to() else {
        return connector
            .connect_unbound(target)
            .map_err(ConnectError::into_failure);
    };
    let deadline = Instant::now() + RETRY_TIMEOUT;
    let mut backoff = RETRY_BACKOFF_MIN;
    let taken = loop {
        match connector.connect_from(source, target) {
            Ok(upstream) => return Ok(upstream),
            Err(ConnectError::TupleTaken(_)) if Instant::now() < deadline => {
                sleep(backoff).await;
                backoff = (backoff * 2).min(RETRY_BACKOFF_MAX);
            }
            Err(ConnectError::TupleTaken(taken) | ConnectError::PortTaken(taken)) => break taken,
            Err(ConnectError::Other(failure)) => return Err(failure),
        }
    };
    let replacement = connector.resolve_collision(source, permit, taken)?;
    connector
        .connect_from(replacement, target)
        .map_err(ConnectError::into_failure)
}

/// A closing connection frees its 4-tuple within a round trip or two. A connection that still holds the 4-tuple
/// after this time is taken for open, not closing.
const RETRY_TIMEOUT: Duration = Duration::from_secs(1);
const RETRY_BACKOFF_MIN: Duration = Duration::from_millis(5);
const RETRY_BACKOFF_MAX: Duration = Duration::from_millis(100);
