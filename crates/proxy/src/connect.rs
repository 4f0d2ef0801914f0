//! The fourth stage: a connection to the backend that really comes from the client's address.

mod attempt;
mod datagram;

use std::io::{self, ErrorKind};
use std::time::Duration;

use peername_relay::Prefix;
use peername_sys::socket::upstream::is_connected;
use peername_sys::tcp::stream;
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

use attempt::ConnectError;
pub use attempt::Connector;

use crate::conn::accept::refuse;
use crate::conn::header::ClaimedConn;
use crate::outcome::Failure;
use crate::policy::permit::Permit;

/// Both sockets of a connection, and what has been read of it: whatever carries it on needs no more than these.
#[derive(Debug)]
pub struct ConnectedPair {
    pub(crate) downstream: TcpStream,
    pub(crate) upstream: TcpStream,
    /// The client's first octets.
    pub(crate) ahead: Prefix,
}

impl ConnectedPair {
    /// Connects to the permit's target from the permit's source.
    ///
    /// # Errors
    ///
    /// The backend's refusal or silence, a taken 4-tuple, a missing permission, or a source that the
    /// kernel rewrote. The downstream connection is reset.
    pub fn open(
        framed: ClaimedConn,
        permit: &Permit,
        connector: &Connector,
    ) -> impl Future<Output = Result<Self, Failure>> + Send {
        let ClaimedConn {
            stream: downstream,
            outbound_header,
            mut ahead,
            ..
        } = framed;
        async move {
            match connect(permit, connector, outbound_header.as_deref(), &mut ahead).await {
                Ok(upstream) => Ok(Self {
                    downstream,
                    upstream,
                    ahead,
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
    ahead: &mut Prefix,
) -> Result<TcpStream, Failure> {
    let target = permit.target();
    let refused = |error| Failure::Connect {
        upstream: target,
        error,
    };
    let upstream = begin(permit, connector).await?;
    let first = outbound_header.unwrap_or(&ahead.bytes);
    let sent = match speak(&upstream, first).map_err(refused)? {
        Some(sent) => sent,
        None => {
            let after = connector.config.connect_timeout;
            let established = timeout(after, established(&upstream)).await;
            let late = |_| Failure::ConnectTimeout {
                upstream: target,
                after,
            };
            established.map_err(late)?.map_err(refused)?;
            0
        }
    };
    match outbound_header {
        None => ahead.sent = sent,
        Some(outbound_header) => {
            write_all(&upstream, outbound_header.get(sent..).unwrap_or_default())
                .await
                .map_err(refused)?
        }
    }
    Ok(upstream)
}

/// Sends what comes first, and returns how much of it has gone; `None` while the connection does not stand. One to this
/// host does right after connect(2), and sending shows that.
fn speak(upstream: &TcpStream, first: &[u8]) -> io::Result<Option<usize>> {
    if first.is_empty() {
        return Ok(is_connected(upstream).then_some(0));
    }
    match stream::send(upstream, first) {
        Ok(sent) => Ok(Some(sent)),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}

/// Starts to connect, within the collision policy.
///
/// Our sockets share a client's port (SO_REUSEADDR) as long as the 4-tuples differ, so that only two
/// things are in the way: a connection of ours with the same 4-tuple, which may be closing just now,
/// and another program's socket, for which waiting is no use.
async fn begin(permit: &Permit, connector: &Connector) -> Result<TcpStream, Failure> {
    let target = permit.target().0;
    let Some(source) = permit.bind_to() else {
        return connector.plain(target).map_err(ConnectError::into_failure);
    };
    let give_up = Instant::now() + RETRY_FOR;
    let mut pause = RETRY_FIRST;
    let taken = loop {
        match connector.from(source, target) {
            Ok(upstream) => return Ok(upstream),
            Err(ConnectError::Closing(_)) if Instant::now() < give_up => {
                sleep(pause).await;
                pause = (pause * 2).min(RETRY_LAST);
            }
            Err(ConnectError::Closing(taken) | ConnectError::Taken(taken)) => break taken,
            Err(ConnectError::Other(failure)) => return Err(failure),
        }
    };
    let other = connector.instead_of(source, permit, taken)?;
    connector
        .from(other, target)
        .map_err(ConnectError::into_failure)
}

/// Waits until the connection stands or has failed.
pub(crate) async fn established(upstream: &TcpStream) -> io::Result<()> {
    upstream.writable().await?;
    match stream::take_error(upstream) {
        Ok(None) => Ok(()),
        Ok(Some(error)) | Err(error) => Err(error),
    }
}

/// Writes all of a header. Only for the few octets before the relay begins.
pub(crate) async fn write_all(socket: &TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let send = || stream::send(socket, bytes);
        let sent = socket.async_io(Interest::WRITABLE, send).await?;
        bytes = bytes.get(sent..).unwrap_or_default();
    }
    Ok(())
}

/// A connection that is closing frees its 4-tuple within a round trip or two; one that is not won't.
const RETRY_FOR: Duration = Duration::from_secs(1);
const RETRY_FIRST: Duration = Duration::from_millis(5);
const RETRY_LAST: Duration = Duration::from_millis(100);
