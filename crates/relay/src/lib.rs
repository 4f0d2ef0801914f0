//! Relays bytes between two connected TCP sockets and preserves how the connection ends.
//!
//! The contract, for every [`Method`]:
//! - every byte arrives, in order;
//! - FIN is forwarded as FIN after the last byte, each direction on its own: a half-closed connection goes
//!   on for as long as data flows in the other direction (half-close);
//! - RST is forwarded as RST, after what was already received has been delivered;
//! - backpressure: a slow reader stalls its writer. At most 64 KiB a direction are buffered here, nothing
//!   while the connection is idle;
//! - only a finished connection ends with FIN: one that is aborted by a limit, or by dropping the
//!   future, is reset on both sides, so that neither peer mistakes the abort for the end of the stream;
//! - nothing hangs: idle time is bounded by [`Limits`].
//!
//! The relay knows no addresses, headers or policy. It runs on a current-thread tokio runtime.
#![forbid(unsafe_code)]

mod active_method;
mod direction;
mod gauge;
mod idle;
mod method;
mod pair;
mod reset;
mod stats;

use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;

pub use active_method::ActiveMethod;
pub use gauge::connections_by_method;
pub use method::Method;
pub use method::splice::limit_pipes;
pub use stats::{RelayStats, Tally};

use crate::pair::{PairRelay, Stop};

/// Two sockets to be relayed as one connection.
#[derive(Debug)]
pub struct Pair {
    /// Towards the client.
    pub downstream: TcpStream,
    /// Towards the backend.
    pub upstream: TcpStream,
}

/// Bytes from downstream that were read before the relay began, with the PROXY header. They are buffered in addition to
/// the 64 KiB that the contract allows a direction.
#[derive(Debug, Default)]
pub struct Prefix {
    /// The bytes, which are sent to upstream before anything else.
    pub bytes: Box<[u8]>,
    /// How many of them were sent to upstream already; at most their length.
    pub sent: usize,
    /// Whether the socket is known to have more: the first read does not wait for an event.
    pub has_more: bool,
}

/// The timeouts of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Idle timeout: the longest time in which no byte is moved in either direction. `None` leaves dead peers to TCP keepalive.
    pub idle: Option<Duration>,
    /// The idle timeout once one side has sent FIN (half-closed).
    pub half_closed: Duration,
    /// Flush timeout after an RST: the longest time in which the surviving side accepts no byte of the remaining data.
    pub flush: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            idle: None,
            half_closed: Duration::from_secs(3600),
            flush: Duration::from_secs(5),
        }
    }
}

/// One of the two ends of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The client's.
    Downstream,
    /// The backend's.
    Upstream,
}

impl Side {
    /// The opposite end.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Self::Downstream => Self::Upstream,
            Self::Upstream => Self::Downstream,
        }
    }
}

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// FIN in both directions; this side sent its FIN first.
    Finished(Side),
    /// This side sent RST or vanished; RST was then sent to the other side.
    Reset(Side),
    /// An idle timeout of [`Limits`] expired.
    Idle,
}

/// Relays until the connection has ended and both sockets are closed. `stats` are live meanwhile, and final however the relay
/// ends, even when the future is dropped.
pub fn relay(
    pair: Pair,
    prefix: Prefix,
    method: Method,
    limits: Limits,
    stats: Arc<RelayStats>,
) -> impl Future<Output = End> + Send {
    let flush_timeout = limits.flush;
    let mut relay = PairRelay::new(pair, prefix, method, limits, stats);
    async move {
        match relay.run().await {
            Stop::Finished(first) => End::Finished(first),
            Stop::Idle => End::Idle,
            Stop::Reset(side) => {
                // Boxed, so that not every connection's future reserves space for it.
                Box::pin(reset::deliver(&mut relay, side, flush_timeout)).await;
                End::Reset(side)
            }
        }
    }
}
