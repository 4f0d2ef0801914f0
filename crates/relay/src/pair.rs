//! Relays both directions of a connection until it is known how it ends.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use peername_sys::event::readiness::clear_ready;
use peername_sys::tcp::stream;
use tokio::io::Interest;
use tokio::net::TcpStream;

use crate::active_method::ActiveMethod;
use crate::direction::{Direction, DirectionState};
use crate::idle::IdleTimer;
use crate::method::Method;
use crate::stats::RelayStats;
use crate::{Limits, Pair, Prefix, Side};

/// A connection that is being relayed: two sockets, and the state of both directions.
#[derive(Debug)]
pub(crate) struct PairRelay {
    sockets: Pair,
    to_upstream: Direction,
    to_downstream: Direction,
    /// The side that sent FIN first.
    first_finished: Option<Side>,
    idle: IdleTimer,
    limits: Limits,
    stats: Arc<RelayStats>,
}

/// Why both directions stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// FIN has been forwarded in both directions; this side sent it first.
    Finished(Side),
    /// This side was reset, closed or timed out.
    Reset(Side),
    /// The idle timeout expired.
    Idle,
}

impl PairRelay {
    pub(crate) fn new(
        sockets: Pair,
        prefix: Prefix,
        method: Method,
        limits: Limits,
        stats: Arc<RelayStats>,
    ) -> Self {
        let mut idle = IdleTimer::default();
        if let Some(limit) = limits.idle {
            idle.set_limit(limit);
        }
        let to_upstream = Direction::new(method, prefix);
        let to_downstream = Direction::new(method, Prefix::default());
        let relay = Self {
            sockets,
            to_upstream,
            to_downstream,
            first_finished: None,
            idle,
            limits,
            stats,
        };
        relay.publish_method();
        relay
    }

    /// Relays until it is known how the connection ends.
    pub(crate) async fn run(&mut self) -> Stop {
        poll_fn(|cx| self.poll_run(cx)).await
    }

    /// Drains the dead side: sends on to the other side what the dead one had sent. Ready when the other side has accepted all
    /// of it, or can't accept more.
    pub(crate) fn poll_drain(&mut self, dead: Side, cx: &mut Context<'_>) -> Poll<()> {
        let (direction, source, sink) = self.direction_from(dead);
        direction.poll_drain(source, sink, cx)
    }

    pub(crate) fn socket(&self, side: Side) -> &TcpStream {
        match side {
            Side::Downstream => &self.sockets.downstream,
            Side::Upstream => &self.sockets.upstream,
        }
    }

    /// Bytes moved in both directions.
    pub(crate) fn moved(&self) -> u64 {
        self.to_upstream.moved() + self.to_downstream.moved()
    }

    fn poll_run(&mut self, cx: &mut Context<'_>) -> Poll<Stop> {
        let moved = self.moved();
        for side in [Side::Downstream, Side::Upstream] {
            if let Some(dead) = self.pump_from(side, cx) {
                return Poll::Ready(Stop::Reset(dead));
            }
        }
        if self.is_finished() {
            let first = self.first_finished.unwrap_or(Side::Downstream);
            return Poll::Ready(Stop::Finished(first));
        }
        for side in [Side::Downstream, Side::Upstream] {
            if self.is_unread(side) && self.check_hang_up(side, cx) {
                return Poll::Ready(Stop::Reset(side));
            }
        }
        if self.moved() != moved {
            self.publish_stats();
            self.idle.record_activity();
        }
        self.idle.poll_expired(cx).map(|()| Stop::Idle)
    }

    fn publish_stats(&self) {
        let (up, down) = (self.to_upstream.moved(), self.to_downstream.moved());
        self.stats.record_moved(up, down);
        self.publish_method();
    }

    fn publish_method(&self) {
        let is_splicing = self.to_upstream.is_splicing() || self.to_downstream.is_splicing();
        self.stats.set_method(if is_splicing {
            ActiveMethod::Splice
        } else {
            ActiveMethod::Copy
        });
    }

    /// Pumps the direction that has `side` as its source; returns the side that turned out to be dead.
    fn pump_from(&mut self, side: Side, cx: &mut Context<'_>) -> Option<Side> {
        let (direction, source, sink) = self.direction_from(side);
        if direction.state() == DirectionState::Finished {
            return None;
        }
        match direction.pump(source, sink, cx) {
            DirectionState::SourceDead => Some(side),
            DirectionState::SinkDead => Some(side.other()),
            DirectionState::Finished => self.forward_fin(side),
            DirectionState::Open | DirectionState::SourceFinished => None,
        }
    }

    fn is_finished(&self) -> bool {
        [&self.to_upstream, &self.to_downstream]
            .iter()
            .all(|direction| direction.state() == DirectionState::Finished)
    }

    /// Forwards this side's FIN (half-close). Returns the other side if it turns out to be dead. The second FIN needs no
    /// call here: close(2), which follows, sends it.
    fn forward_fin(&mut self, side: Side) -> Option<Side> {
        if self.first_finished.is_some() {
            return None;
        }
        self.first_finished = Some(side);
        self.stats.set_half_closed();
        self.idle.set_limit(self.limits.half_closed);
        let receiver = side.other();
        stream::shutdown_write(self.socket(receiver))
            .is_err()
            .then_some(receiver)
    }

    /// Whether nothing is read from this side now: it has sent FIN, or the other side exerts backpressure.
    fn is_unread(&mut self, side: Side) -> bool {
        let (direction, ..) = self.direction_from(side);
        direction.state() != DirectionState::Open || direction.unsent() > 0
    }

    /// Whether a side that is not read from was reset; registers `cx` for the reset. If nothing is written to that side
    /// either, its reset would go unnoticed otherwise, and the descriptors would leak.
    fn check_hang_up(&self, side: Side, cx: &mut Context<'_>) -> bool {
        let socket = self.socket(side);
        // Twice, because an event may arrive between the two calls.
        for _ in 0..2 {
            // Once cleared, writability is reported again only by an event: space in the send buffer, or
            // the hang-up.
            clear_ready(socket, Interest::WRITABLE);
            if socket.poll_write_ready(cx).is_pending() {
                return false;
            }
            if matches!(stream::take_error(socket), Ok(Some(_)) | Err(_)) {
                return true;
            }
        }
        false
    }

    /// The direction that has `side` as its source, with the sockets of its source and its sink.
    fn direction_from(&mut self, side: Side) -> (&mut Direction, &TcpStream, &TcpStream) {
        let Pair {
            downstream,
            upstream,
        } = &self.sockets;
        match side {
            Side::Downstream => (&mut self.to_upstream, downstream, upstream),
            Side::Upstream => (&mut self.to_downstream, upstream, downstream),
        }
    }
}

/// Resets both sides unless the connection is finished: close(2) alone would send FIN, which signals that everything
/// was sent.
impl Drop for PairRelay {
    fn drop(&mut self) {
        self.publish_stats();
        let undelivered = self.to_upstream.unsent() + self.to_downstream.unsent();
        self.stats.set_undelivered(undelivered);
        self.stats.clear_method();
        if !self.is_finished() {
            // These fail only on sockets that are closed already, which need no reset.
            let _ = stream::reset_on_close(&self.sockets.downstream);
            let _ = stream::reset_on_close(&self.sockets.upstream);
        }
    }
}
