//! The fourth stage: a connection to the backend that really comes from the client's address.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::Duration;

use peername_sys::Failed;
use peername_sys::stream;
use peername_sys::upstream::{Upstream, is_established, local_addr};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

use crate::accept::refuse;
use crate::config::{self, OnCollision};
use crate::counters::Counters;
use crate::frame::Framed;
use crate::outcome::Failure;
use crate::permit::Permit;

/// Both sockets of a connection, and nothing else: whatever carries it on needs no more than these.
#[derive(Debug)]
pub struct Connected {
    pub(crate) downstream: TcpStream,
    pub(crate) upstream: TcpStream,
}

impl Connected {
    /// Connects to the permit's target from the permit's source.
    ///
    /// # Errors
    ///
    /// The backend's refusal or silence, a taken 4-tuple, a missing permission, or a source that the
    /// kernel rewrote. The downstream connection is reset.
    pub async fn open(
        framed: Framed,
        permit: &Permit,
        config: &config::Upstream,
        counters: &Counters,
    ) -> Result<Self, Failure> {
        let Framed {
            stream: downstream,
            preface,
            ..
        } = framed;
        match connect(permit, config, counters, preface.as_deref()).await {
            Ok(upstream) => Ok(Self {
                downstream,
                upstream,
            }),
            Err(failure) => Err(refuse(&downstream, failure)),
        }
    }
}

async fn connect(
    permit: &Permit,
    config: &config::Upstream,
    counters: &Counters,
    preface: Option<&[u8]>,
) -> Result<TcpStream, Failure> {
    let upstream = begin(permit, config, counters).await?;
    if !is_established(&upstream) {
        timeout(config.connect_timeout, established(&upstream))
            .await
            .map_err(|_| Failure::ConnectTimeout(config.connect_timeout))??;
    }
    if let Some(preface) = preface {
        write_all(&upstream, preface)
            .await
            .map_err(Failure::Connect)?;
    }
    Ok(upstream)
}

/// Starts to connect, within the collision policy.
///
/// Our sockets share a client's port (SO_REUSEADDR) as long as the 4-tuples differ, so that only two
/// things are in the way: a connection of ours with the same 4-tuple, which may be closing just now,
/// and another program's socket, for which waiting is no use.
async fn begin(
    permit: &Permit,
    config: &config::Upstream,
    counters: &Counters,
) -> Result<TcpStream, Failure> {
    let Some(source) = permit.bind_to() else {
        return start(permit, None, config).map_err(Begin::into_failure);
    };
    let give_up = Instant::now() + RETRY_FOR;
    let mut pause = RETRY_FIRST;
    let taken = loop {
        match start(permit, Some(source), config) {
            Ok(upstream) => return Ok(upstream),
            Err(Begin::Closing(_)) if Instant::now() < give_up => {
                sleep(pause).await;
                pause = (pause * 2).min(RETRY_LAST);
            }
            Err(Begin::Closing(taken) | Begin::Taken(taken)) => break taken,
            Err(other) => return Err(other.into_failure()),
        }
    };
    let other = instead_of(source, taken, config, counters)?;
    start(permit, Some(other), config).map_err(Begin::into_failure)
}

/// What the policy puts in the place of a source that is taken.
pub(crate) fn instead_of(
    source: SocketAddr,
    taken: Failed,
    config: &config::Upstream,
    counters: &Counters,
) -> Result<SocketAddr, Failure> {
    counters.collided();
    match config.on_collision {
        OnCollision::Fail => Err(Failure::PortTaken(taken)),
        OnCollision::Ephemeral => Ok(SocketAddr::new(source.ip(), 0)),
    }
}

/// What can be wrong before anything has left.
pub(crate) enum Begin {
    /// A connection of ours has the 4-tuple, maybe only for a moment.
    Closing(Failed),
    /// Another program has the address and port.
    Taken(Failed),
    /// Anything else.
    Other(Failure),
}

impl Begin {
    pub(crate) fn into_failure(self) -> Failure {
        match self {
            Self::Closing(failed) | Self::Taken(failed) => Failure::PortTaken(failed),
            Self::Other(failure) => failure,
        }
    }
}

fn start(
    permit: &Permit,
    source: Option<SocketAddr>,
    config: &config::Upstream,
) -> Result<TcpStream, Begin> {
    let target = permit.target().0;
    let local = |failed| Begin::Other(Failure::Local(failed));
    let socket = Upstream::new(target).map_err(local)?;
    stream::tune_to(&socket, target.ip()).map_err(local)?;
    prepare(&socket, source, config)?;
    let upstream = socket
        .connect(target)
        .map_err(|failed| match failed.source.kind() {
            ErrorKind::AddrNotAvailable if source.is_some() => Begin::Closing(failed),
            _ => Begin::Other(Failure::Connect(failed.source)),
        })?;
    if let Some(wanted) = source {
        verify(&upstream, wanted).map_err(|failure| {
            let _ = stream::reset_on_close(&upstream);
            Begin::Other(failure)
        })?;
    }
    TcpStream::from_std(upstream).map_err(|source| {
        Begin::Other(Failure::Local(Failed {
            call: "epoll_ctl(2)",
            source,
        }))
    })
}

/// Gives a socket the mark and the source it is to connect from.
pub(crate) fn prepare(
    socket: &Upstream,
    source: Option<SocketAddr>,
    config: &config::Upstream,
) -> Result<(), Begin> {
    let local = |failed| Begin::Other(Failure::Local(failed));
    if let Some(mark) = config.mark {
        socket.mark(mark.get()).map_err(local)?;
    }
    if let Some(source) = source {
        socket.transparent().map_err(local)?;
        socket
            .bind(source)
            .map_err(|failed| match failed.source.kind() {
                ErrorKind::AddrInUse => Begin::Taken(failed),
                _ => local(failed),
            })?;
    }
    Ok(())
}

/// The guard behind every policy: after connect(2) the socket has the address that was asked for, or
/// the connection ends. The kernel silently replaces addresses that it can't route from.
pub(crate) fn verify(upstream: impl AsFd, wanted: SocketAddr) -> Result<(), Failure> {
    let got = local_addr(upstream).map_err(Failure::Local)?;
    let same_port = wanted.port() == 0 || wanted.port() == got.port();
    if got.ip() != wanted.ip() || !same_port {
        return Err(Failure::SourceRewritten { wanted, got });
    }
    Ok(())
}

async fn established(upstream: &TcpStream) -> Result<(), Failure> {
    upstream.writable().await.map_err(Failure::Connect)?;
    match stream::take_error(upstream) {
        Ok(None) => Ok(()),
        Ok(Some(error)) | Err(error) => Err(Failure::Connect(error)),
    }
}

/// Writes all of a header. Only for the few octets before the relay begins.
pub(crate) async fn write_all(socket: &TcpStream, mut bytes: &[u8]) -> std::io::Result<()> {
    while !bytes.is_empty() {
        match stream::send(socket, bytes) {
            Ok(n) => bytes = bytes.get(n..).unwrap_or_default(),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                let _ = socket.try_io(tokio::io::Interest::WRITABLE, || Err::<(), _>(error));
                socket.writable().await?;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// A connection that is closing frees its 4-tuple within a round trip or two; one that is not won't.
const RETRY_FOR: Duration = Duration::from_secs(1);
const RETRY_FIRST: Duration = Duration::from_millis(5);
const RETRY_LAST: Duration = Duration::from_millis(100);
