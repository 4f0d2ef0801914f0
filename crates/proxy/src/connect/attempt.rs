//! One try to connect: a socket with the client's address, and what can be in its way before the
//! first SYN has left.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::os::fd::AsFd;
use std::sync::Arc;

use peername_sys::SyscallError;
use peername_sys::event::readiness::register_stream;
use peername_sys::socket::upstream::{UpstreamSocket, ephemeral_ports, local_addr};
use peername_sys::tcp::stream;
use tokio::net::TcpStream;

use crate::config::{self, OnCollision};
use crate::outcome::Failure;
use crate::policy::permit::Permit;
use crate::telemetry::counters::Counters;
use peername_server::addr::Target;

/// What every connection to a backend needs.
#[derive(Debug)]
pub struct Connector {
    pub(super) config: config::Upstream,
    pub(super) counters: Arc<Counters>,
    /// The ports from which connect(2) chooses.
    ephemeral: RangeInclusive<u16>,
}

/// What was in the way.
#[derive(Debug)]
pub(super) enum ConnectError {
    /// A connection of ours has the 4-tuple, maybe only for a moment.
    Closing(SyscallError),
    /// Another program has the address and port.
    Taken(SyscallError),
    /// Anything else.
    Other(Failure),
}

impl Connector {
    /// For the network namespace of the calling thread.
    ///
    /// # Errors
    ///
    /// The range of ephemeral ports can't be read.
    pub fn new(config: config::Upstream, counters: Arc<Counters>) -> peername_sys::Result<Self> {
        Ok(Self {
            config,
            counters,
            ephemeral: ephemeral_ports()?,
        })
    }

    /// Connects as ourselves.
    pub(super) fn plain(&self, target: SocketAddr) -> Result<TcpStream, ConnectError> {
        let socket = self.socket(target).map_err(ConnectError::local)?;
        let upstream = socket
            .connect(target)
            .map_err(|failed| ConnectError::refused(target, failed))?;
        register_stream(upstream).map_err(ConnectError::local)
    }

    /// Connects from `source`; any port when that is 0.
    ///
    /// The kernel is asked to choose the client's port, of one. Bound by number it would be lost for
    /// every other socket of this host. Only by number, though, may it still be in TIME_WAIT.
    pub(super) fn from(
        &self,
        source: SocketAddr,
        target: SocketAddr,
    ) -> Result<TcpStream, ConnectError> {
        if self.ephemeral.contains(&source.port()) {
            match self.bound(source, target, UpstreamSocket::bind_port_at_connect) {
                Err(ConnectError::Closing(_)) => {}
                // The range was changed since we read it.
                Err(ConnectError::Other(Failure::SourceRewritten { wanted, got }))
                    if wanted.ip() == got.ip() => {}
                Err(ConnectError::Other(Failure::Local(failed))) if failed.is_unknown_option() => {}
                connected_or_not => return connected_or_not,
            }
        }
        match source.port() {
            0 => self.bound(source, target, |socket, source| {
                socket.bind_any_port(source.ip())
            }),
            _ => self.bound(source, target, UpstreamSocket::bind),
        }
    }

    fn bound(
        &self,
        source: SocketAddr,
        target: SocketAddr,
        bind: impl FnOnce(&UpstreamSocket, SocketAddr) -> peername_sys::Result<()>,
    ) -> Result<TcpStream, ConnectError> {
        let socket = self.socket(target).map_err(ConnectError::local)?;
        socket.set_transparent().map_err(ConnectError::local)?;
        bind(&socket, source).map_err(|failed| match failed.source.kind() {
            ErrorKind::AddrInUse => ConnectError::Taken(failed),
            _ => ConnectError::local(failed),
        })?;
        let upstream = socket
            .connect(target)
            .map_err(|failed| match failed.source.kind() {
                ErrorKind::AddrNotAvailable => ConnectError::Closing(failed),
                _ => ConnectError::refused(target, failed),
            })?;
        verify(&upstream, source).map_err(|failure| {
            let _ = stream::reset_on_close(&upstream);
            ConnectError::Other(failure)
        })?;
        register_stream(upstream).map_err(ConnectError::local)
    }

    fn socket(&self, target: SocketAddr) -> peername_sys::Result<UpstreamSocket> {
        let socket = UpstreamSocket::new_tcp(target)?;
        stream::tune_for_peer(&socket, target.ip())?;
        self.mark(&socket)?;
        Ok(socket)
    }

    pub(super) fn mark(&self, socket: &UpstreamSocket) -> peername_sys::Result<()> {
        match self.config.mark {
            Some(mark) => socket.set_mark(mark.get()),
            None => Ok(()),
        }
    }

    /// What the collision policy puts in the place of a source that is taken.
    pub(super) fn instead_of(
        &self,
        source: SocketAddr,
        permit: &Permit,
        taken: SyscallError,
    ) -> Result<SocketAddr, Failure> {
        self.counters.collided();
        match permit.on_collision() {
            OnCollision::Fail => Err(Failure::PortTaken(taken)),
            OnCollision::Ephemeral => Ok(SocketAddr::new(source.ip(), 0)),
        }
    }
}

impl ConnectError {
    pub(super) fn into_failure(self) -> Failure {
        match self {
            Self::Closing(failed) | Self::Taken(failed) => Failure::PortTaken(failed),
            Self::Other(failure) => failure,
        }
    }

    /// The backend's host, or the way to it, said no.
    pub(super) fn refused(target: SocketAddr, failed: SyscallError) -> Self {
        Self::Other(Failure::Connect {
            upstream: Target(target),
            error: failed.source,
        })
    }

    pub(super) fn local(failed: SyscallError) -> Self {
        Self::Other(Failure::Local(failed))
    }
}

/// The guard behind every policy: after connect(2) the socket has the address that was asked for, or
/// the connection ends. The kernel silently replaces addresses that it can't route from.
pub(super) fn verify(upstream: impl AsFd, wanted: SocketAddr) -> Result<(), Failure> {
    let got = local_addr(upstream).map_err(Failure::Local)?;
    let same_port = wanted.port() == 0 || wanted.port() == got.port();
    if got.ip() != wanted.ip() || !same_port {
        return Err(Failure::SourceRewritten { wanted, got });
    }
    Ok(())
}
