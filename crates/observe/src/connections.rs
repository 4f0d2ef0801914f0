//! Snapshots of open connections and sessions: what `/connections` and `/sessions` list.

use std::net::SocketAddr;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use serde::{Deserialize, Serialize};

/// One open connection or session at one moment. Its JSON object is one line of a listing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConnectionSnapshot {
    /// Unique among the connections, or among the sessions, of a process.
    pub id: u64,
    /// The address that the listening socket is bound to.
    pub listener: SocketAddr,
    /// The transport.
    pub protocol: Protocol,
    /// The other end of the connection: the balancer, if there is one.
    #[serde(rename = "balancer")]
    pub peer: SocketAddr,
    /// The client, once it is known.
    pub client: Option<SocketAddr>,
    /// The backend, once it is known.
    pub target: Option<SocketAddr>,
    /// `intercept`: the host and port of the current or the last request.
    pub host: Option<String>,
    /// The stage that it has reached.
    pub state: ConnectionState,
    /// Seconds since its start.
    pub age_s: f64,
    /// Seconds since a byte or datagram was last moved; since its start, if none was.
    pub idle_s: f64,
    /// Bytes from the client that the backend accepted; `None` where they are not counted while it is open.
    pub bytes_in: Option<u64>,
    /// Bytes from the backend that the client accepted, likewise.
    pub bytes_out: Option<u64>,
    /// The method that moves its bytes at this moment.
    pub relay: Option<RelayMethod>,
}

impl ConnectionSnapshot {
    /// The bytes in both directions, as far as they are counted.
    pub fn bytes(&self) -> u64 {
        self.bytes_in
            .unwrap_or_default()
            .saturating_add(self.bytes_out.unwrap_or_default())
    }
}

/// The transport of a connection or session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Protocol {
    /// A connection.
    Tcp,
    /// A session.
    Udp,
}

/// The stage that a connection or session has reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConnectionState {
    /// Its PROXY header is not complete yet.
    Header,
    /// The connection to the backend is not made yet.
    Connecting,
    /// Its bytes are relayed. In `intercept`, it is a tunnel whose TLS is not opened.
    Open,
    /// One side has sent FIN.
    HalfClosed,
    /// `intercept`: its tunnel is open, and its TLS handshake is not complete.
    Handshake,
    /// `intercept`: no request is in flight.
    Idle,
    /// `intercept`: a request is in flight.
    InFlight,
    /// A session whose backend has not answered yet.
    Unanswered,
    /// A session whose backend has answered.
    Answered,
}

/// The method that moves the bytes of a connection or session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RelayMethod {
    /// read(2) and write(2).
    Copy,
    /// splice(2).
    Splice,
    /// A session's worker, in batches.
    Userspace,
    /// The kernel data path, for a session.
    Kernel,
}

/// Snapshots in batches, each from one worker.
pub type SnapshotStream = BoxStream<'static, Vec<ConnectionSnapshot>>;

/// The connections or sessions of a running command.
pub trait ConnectionSource: Send + Sync + 'static {
    /// Takes snapshots of all that are open. Connections that begin or end meanwhile may or may not be included.
    fn snapshots(&self) -> SnapshotStream;

    /// Ends the connection with this id. The future returns its last snapshot, or `None` if no connection has the id. There is
    /// no future for sessions, which can't be ended from outside.
    fn end(&self, _id: u64) -> Option<BoxFuture<'static, Option<ConnectionSnapshot>>> {
        None
    }
}

/// A duration in seconds, to the millisecond.
pub fn seconds(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1000.0).round() / 1000.0
}

/// Entries that a worker copies before it serves its connections again: some ten microseconds of work.
pub const SNAPSHOT_BATCH: usize = 256;
