//! One client connection: the client, its exchanges in flight, and its connections to origins.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;
use peername_observe::connections::ConnectionState;
use peername_server::addr::{ClaimedSource, PeerAddr};
use peername_server::workers::connections::{ConnectionEntry, ServedConnection, ServedStatus};

use super::stall_monitor::StallMonitor;
use crate::request::client_info::ClientInfo;
use crate::request::id::Id;
use crate::request::target::RequestTarget;
use crate::stream::client_socket::CutResponse;
use crate::upstream::{ClientLeases, Upstream};

/// A connection of a client, shared by the requests on it.
#[derive(Debug)]
pub(crate) struct ClientConnection {
    pub(crate) info: Arc<ClientInfo>,
    /// Exchanges in flight.
    pub(crate) exchanges: StallMonitor,
    /// Connections to origins that this client uses.
    pub(crate) leases: Arc<ClientLeases>,
    /// The connection in the worker's table.
    pub(crate) entry: Arc<ConnectionEntry>,
    /// Set if a response breaks off, so that the socket is reset instead of closed.
    pub(crate) cut: CutResponse,
    /// The target of the last request or tunnel.
    target: Mutex<Option<Arc<RequestTarget>>>,
    /// Whether a tunnel is open, and the protocol inside it is not known yet.
    is_opening: AtomicBool,
    /// Whether the client has shut down its side or closed the connection; only a write would tell which.
    is_half_closed: AtomicBool,
}

impl ClientConnection {
    /// The connection of `client`, which came from `peer`; `entry` reports its status from now on.
    pub(crate) fn new(
        peer: PeerAddr,
        client: SocketAddr,
        entry: Arc<ConnectionEntry>,
    ) -> Arc<Self> {
        let id = Id::next();
        entry.set_client(ClaimedSource(client));
        let connection = Arc::new(Self {
            info: Arc::new(ClientInfo::new(id, peer, client)),
            exchanges: StallMonitor::default(),
            leases: Upstream::new_leases(id, client.ip()),
            entry,
            cut: CutResponse::default(),
            target: Mutex::default(),
            is_opening: AtomicBool::new(false),
            is_half_closed: AtomicBool::new(false),
        });
        let served = Arc::downgrade(&connection);
        connection.entry.set_served(served);
        connection
    }

    /// Notes that the client sends nothing more.
    pub(crate) fn set_half_closed(&self) {
        self.is_half_closed.store(true, Relaxed);
    }

    /// Whether the client sends nothing more.
    pub(crate) fn is_half_closed(&self) -> bool {
        self.is_half_closed.load(Relaxed)
    }

    /// Notes the target of a request or tunnel that has begun.
    pub(crate) fn set_target(&self, target: &Arc<RequestTarget>) {
        *self.target.lock() = Some(Arc::clone(target));
    }

    /// Notes whether the protocol inside the tunnel is not known yet: mostly the connection then waits for a TLS handshake.
    pub(crate) fn set_opening(&self, is_opening: bool) {
        self.is_opening.store(is_opening, Relaxed);
    }
}

impl ServedConnection for ClientConnection {
    fn status(&self) -> ServedStatus {
        let idle = self.exchanges.idle();
        let state = if self.is_opening.load(Relaxed) {
            ConnectionState::Handshake
        } else if idle.is_some() {
            ConnectionState::Idle
        } else {
            ConnectionState::InFlight
        };
        let target = self.target.lock();
        ServedStatus {
            state,
            host: target.as_ref().map(|target| target.to.to_string()),
            idle: idle.unwrap_or(Duration::ZERO),
        }
    }
}
