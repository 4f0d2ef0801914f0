//! One attempt to connect: opens a socket with the client's address, and classifies the errors of bind(2) and
//! connect(2).

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::os::fd::AsFd;
use std::sync::Arc;

use peername_server::addr::Target;
use peername_sys::SyscallError;
use peername_sys::event::readiness::register_stream;
use peername_sys::socket::upstream::{UpstreamSocket, ephemeral_ports, local_addr};
use peername_sys::tcp::stream;
use tokio::net::TcpStream;

use crate::config::{OnCollision, UpstreamConfig};
use crate::outcome::Failure;
use crate::policy::permit::Permit;
use crate::telemetry::counters::Counters;

/// Opens sockets that connect to a backend.
#[derive(Debug)]
pub struct Connector {
    pub(super) config: UpstreamConfig,
    pub(super) counters: Arc<Counters>,
    /// The ephemeral ports, from which connect(2) chooses.
    ephemeral: RangeInclusive<u16>,
}

/// A socket that is connecting.
#[derive(Debug)]
pub(super) struct Connecting {
    pub(super) upstream: TcpStream,
    /// The client's address and the port in use, as getsockname(2) returns them; `None` where the source is an address of this
    /// host.
    pub(super) client: Option<SocketAddr>,
}

/// The reason why an attempt failed.
#[derive(Debug)]
pub(super) enum ConnectError {
    /// A connection of ours has the 4-tuple (connect(2): EADDRNOTAVAIL), maybe only for a moment: retry.
    TupleTaken(SyscallError),
    /// Another program has the address and port (bind(2): EADDRINUSE): a retry is of no use.
    PortTaken(SyscallError),
    /// The attempt failed for another reason.
    Other(Failure),
}

impl Connector {
    /// A connector for the network namespace of the calling thread.
    ///
    /// # Errors
    ///
    /// The range of ephemeral ports can't be read.
    pub fn new(config: UpstreamConfig, counters: Arc<Counters>) -> peername_sys::Result<Self> {
        Ok(Self {
            config,
            counters,
            ephemeral: ephemeral_ports()?,
        })
    }

    /// Connects from an address of this host that the kernel chooses.
    pub(super) fn connect_unbound(&self, target: SocketAddr) -> Result<Connecting, ConnectError> {
        let socket = self.open_socket(target).map_err(ConnectError::local)?;
        let upstream = socket.connect(target).map_err(|error| {
            ConnectError::Other(Failure::from_tcp_connect(Target(target), error))
        })?;
        Ok(Connecting {
            upstream: register_stream(upstream).map_err(ConnectError::local)?,
            client: None,
        })
    }

    /// Connects from `source`, with any port if its port is 0.
    ///
    /// An ephemeral port is first requested as a port range of one: if a port is bound by number, connect(2) can't
    /// choose it for any other socket of this host. The second try binds the port by number: only that works for a port
    /// in TIME_WAIT.
    pub(super) fn connect_from(
        &self,
        source: SocketAddr,
        target: SocketAddr,
    ) -> Result<Connecting, ConnectError> {
        if self.ephemeral.contains(&source.port()) {
            match self.connect_bound(source, target, UpstreamSocket::bind_port_at_connect) {
                Err(ConnectError::TupleTaken(_)) => {}
                // The range of ephemeral ports has changed since it was read.
                Err(ConnectError::Other(Failure::SourceRewritten { wanted, got }))
                    if wanted.ip() == got.ip() => {}
                Err(ConnectError::Other(Failure::Local(error))) if error.is_unknown_option() => {}
                result => return result,
            }
        }
        self.connect_bound(source, target, bind)
    }

    fn connect_bound(
        &self,
        source: SocketAddr,
        target: SocketAddr,
        bind_call: impl FnOnce(&UpstreamSocket, SocketAddr) -> peername_sys::Result<()>,
    ) -> Result<Connecting, ConnectError> {
        let socket = self.open_socket(target).map_err(ConnectError::local)?;
        socket.set_transparent().map_err(ConnectError::local)?;
        bind_call(&socket, source).map_err(ConnectError::from_bind)?;
        let upstream = socket.connect(target).map_err(|error| {
            if source.port() != 0 && error.is_address_unavailable() {
                return ConnectError::TupleTaken(error);
            }
            ConnectError::Other(Failure::from_tcp_connect(Target(target), error))
        })?;
        let client = verify_source(&upstream, source).map_err(|failure| {
            let _ = stream::reset_on_close(&upstream);
            ConnectError::Other(failure)
        })?;
        Ok(Connecting {
            upstream: register_stream(upstream).map_err(ConnectError::local)?,
            client: Some(client),
        })
    }

    fn open_socket(&self, target: SocketAddr) -> peername_sys::Result<UpstreamSocket> {
        let socket = UpstreamSocket::new_tcp(target)?;
        stream::tune_for_peer(&socket, target.ip())?;
        socket.set_mark(self.config.mark)?;
        Ok(socket)
    }

    /// Applies the collision policy. Returns the source to connect from instead of `source`, which is taken.
    pub(super) fn resolve_collision(
        &self,
        source: SocketAddr,
        permit: &Permit,
        taken: SyscallError,
    ) -> Result<SocketAddr, Failure> {
        self.counters.count_collision();
        match permit.on_collision() {
            OnCollision::Fail => Err(Failure::PortTaken(taken)),
            OnCollision::Ephemeral => Ok(SocketAddr::new(source.ip(), 0)),
        }
    }
}

impl ConnectError {
    pub(super) fn into_failure(self) -> Failure {
        match self {
            Self::TupleTaken(error) | Self::PortTaken(error) => Failure::PortTaken(error),
            Self::Other(failure) => failure,
        }
    }

    /// Classifies an error of bind(2).
    pub(super) fn from_bind(error: SyscallError) -> Self {
        match error.source.kind() {
            ErrorKind::AddrInUse => Self::PortTaken(error),
            _ => Self::local(error),
        }
    }

    /// A system call failed on this host.
    pub(super) fn local(error: SyscallError) -> Self {
        Self::Other(Failure::Local(error))
    }
}

/// Binds to `source`, with any port if its port is 0.
pub(super) fn bind(socket: &UpstreamSocket, source: SocketAddr) -> peername_sys::Result<()> {
    match source.port() {
        0 => socket.bind_any_port(source.ip()),
        _ => socket.bind(source),
    }
}

/// Verifies that the socket has the requested address after connect(2): the kernel silently replaces addresses that it
/// can't route from. Returns the address with the port that was chosen.
pub(super) fn verify_source(
    upstream: impl AsFd,
    wanted: SocketAddr,
) -> Result<SocketAddr, Failure> {
    let got = local_addr(upstream).map_err(Failure::Local)?;
    let is_wanted_port = wanted.port() == 0 || wanted.port() == got.port();
    if got.ip() != wanted.ip() || !is_wanted_port {
        return Err(Failure::SourceRewritten { wanted, got });
    }
    Ok(got)
}
