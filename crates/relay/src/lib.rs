//! Moves bytes between two connected TCP sockets and keeps the way they end.
//!
//! The contract, whatever the [`Method`]:
//! - every byte arrives, in order;
//! - FIN travels as FIN after the last byte, each direction on its own: a half-closed connection goes
//!   on for as long as data flows in the other direction;
//! - RST travels as RST, after what was already received has been delivered;
//! - a slow reader holds back its writer: at most 64 KiB a direction are held here, nothing while
//!   the connection is idle;
//! - only a finished connection ends with FIN: one that is cut short by a limit, or by dropping the
//!   future, is reset on both sides, so that nobody takes the cut for the end;
//! - nothing hangs: silence is bounded by [`Limits`].
//!
//! It knows no addresses, headers or policy. It runs on a current-thread tokio runtime; a method that
//! leaves the runtime only has to keep the signature of [`relay`].
#![forbid(unsafe_code)]

mod direction;
mod idle;
mod method;
mod pair;
mod reset;

use std::time::Duration;

use tokio::net::TcpStream;

pub use method::Method;
pub use method::splice::limit as limit_pipes;
pub use method::uring::is_possible as has_rings;

use crate::pair::{Running, Stop};

/// Two sockets that are to become one connection.
#[derive(Debug)]
pub struct Pair {
    /// Towards the client.
    pub downstream: TcpStream,
    /// Towards the backend.
    pub upstream: TcpStream,
}

/// What is known of the first octets from downstream. They are held beside what the contract allows a direction.
#[derive(Debug, Default)]
pub struct Ahead {
    /// They have been read already, and go to upstream before the others.
    pub octets: Box<[u8]>,
    /// So many of them have gone; not more than there are.
    pub sent: usize,
    /// Whether more is known to be there: it is read without waiting for an event.
    pub is_followed: bool,
}

/// How long silence is borne.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Neither direction moved a byte; `None` leaves dead peers to TCP keepalive.
    pub idle: Option<Duration>,
    /// The same once one side has sent FIN.
    pub half_closed: Duration,
    /// After an RST: how long the surviving side may take nothing of what is left for it.
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
    /// The end across.
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
    /// FIN both ways; the side sent its FIN first.
    Finished(Side),
    /// The side sent RST or vanished, and the other side was sent RST.
    Reset(Side),
    /// Nothing moved for as long as [`Limits`] allow.
    Idle,
    /// The runtime could not watch the sockets any more, and both sides were sent RST: neither side's doing.
    Lost,
}

/// What was carried. It is true at any end, also when the future of [`relay`] is dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Bytes accepted by the upstream socket.
    pub to_upstream: u64,
    /// Bytes accepted by the downstream socket.
    pub to_downstream: u64,
    /// Bytes received here that could not be delivered because their receiver was gone.
    pub undelivered: u64,
}

/// Relays until the connection has ended and both sockets are closed.
pub fn relay(
    pair: Pair,
    ahead: Ahead,
    method: Method,
    limits: Limits,
    tally: &mut Tally,
) -> impl Future<Output = End> + Send {
    let flush = limits.flush;
    let mut running = Running::new(pair, ahead, method, limits, tally);
    async move {
        match running.stop().await {
            Stop::Finished(first) => End::Finished(first),
            Stop::Idle => End::Idle,
            Stop::Lost => End::Lost,
            Stop::Reset(side) => {
                // Boxed, so that not every connection has room for it.
                Box::pin(reset::deliver(&mut running, side, flush)).await;
                End::Reset(side)
            }
        }
    }
}
