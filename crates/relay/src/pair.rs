//! Relays both directions of a connection until it is known how it ends.

use std::future::poll_fn;
use std::mem;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use peername_sys::event::readiness::clear_ready;
use peername_sys::tcp::stream;
use tokio::io::Interest;
use tokio::net::TcpStream;

use crate::backend::Backend;
use crate::direction::{Direction, DirectionState};
use crate::idle::IdleTimer;
use crate::method::Method;
use crate::method::selector::MethodSelector;
use crate::method::uring::UringSession;
use crate::method::uring::session::SourceEnd;
use crate::stats::RelayStats;
use crate::{Limits, Pair, Prefix, Side};

/// A connection that is being relayed: two sockets, and the state of both directions.
#[derive(Debug)]
pub(crate) struct PairRelay {
    sockets: Sockets,
    to_upstream: Direction,
    to_downstream: Direction,
    /// The side that sent FIN first.
    first_finished: Option<Side>,
    idle: IdleTimer,
    limits: Limits,
    stats: Arc<RelayStats>,
}

#[derive(Debug)]
enum Sockets {
    /// Registered with the runtime.
    Runtime(Pair),
    /// In an io_uring session.
    Uring(UringSession),
    /// Reset, because they could not be registered again.
    Lost,
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
    /// The sockets are lost.
    Lost,
}

impl PairRelay {
    pub(crate) fn new(
        pair: Pair,
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
            sockets: Sockets::Runtime(pair),
            to_upstream,
            to_downstream,
            first_finished: None,
            idle,
            limits,
            stats,
        };
        relay.publish_backend();
        relay
    }

    /// Relays until it is known how the connection ends.
    pub(crate) async fn run(&mut self) -> Stop {
        poll_fn(|cx| self.poll_run(cx)).await
    }

    /// Drains the dead side: sends what it had sent to the other one; ready when all of it has been accepted, or
    /// can't be.
    pub(crate) fn poll_drain(&mut self, dead: Side, cx: &mut Context<'_>) -> Poll<()> {
        match self.direction_from(dead) {
            Some((direction, source, sink)) => direction.poll_drain(source, sink, cx),
            None => Poll::Ready(()),
        }
    }

    /// The socket of a side; `None` when it is not registered with the runtime.
    pub(crate) fn socket(&self, side: Side) -> Option<&TcpStream> {
        match (&self.sockets, side) {
            (Sockets::Runtime(pair), Side::Downstream) => Some(&pair.downstream),
            (Sockets::Runtime(pair), Side::Upstream) => Some(&pair.upstream),
            _ => None,
        }
    }

    pub(crate) fn moved(&self) -> u64 {
        self.to_upstream.moved() + self.to_downstream.moved()
    }

    fn poll_run(&mut self, cx: &mut Context<'_>) -> Poll<Stop> {
        loop {
            if let Some(stop) = ready!(self.poll_uring(cx)) {
                return Poll::Ready(stop);
            }
            let stop = self.poll_runtime(cx);
            if stop.is_ready() || !self.try_enter_uring() {
                return stop;
            }
        }
    }

    fn poll_runtime(&mut self, cx: &mut Context<'_>) -> Poll<Stop> {
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
            self.record_moved();
            self.idle.record_activity();
        }
        self.idle.poll_expired(cx).map(|()| Stop::Idle)
    }

    fn record_moved(&self) {
        let (up, down) = (self.to_upstream.moved(), self.to_downstream.moved());
        self.stats.store(up, down);
        self.publish_backend();
    }

    /// Stores what moves the bytes while the sockets are registered with the runtime.
    fn publish_backend(&self) {
        let is_splicing = self.to_upstream.is_splicing() || self.to_downstream.is_splicing();
        self.stats.set_backend(match is_splicing {
            true => Backend::Splice,
            false => Backend::Copy,
        });
    }

    /// Pumps the direction that has `side` as its source; returns the side that turned out to be dead.
    fn pump_from(&mut self, side: Side, cx: &mut Context<'_>) -> Option<Side> {
        let (direction, source, sink) = self.direction_from(side)?;
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

    /// Forwards this side's FIN (half-close); returns the other side if that is dead. The second FIN is sent by
    /// close(2), which follows.
    fn forward_fin(&mut self, side: Side) -> Option<Side> {
        if self.first_finished.is_some() {
            return None;
        }
        self.first_finished = Some(side);
        self.stats.set_half_closed();
        self.idle.set_limit(self.limits.half_closed);
        let across = side.other();
        stream::shutdown_write(self.socket(across)?)
            .is_err()
            .then_some(across)
    }

    /// Whether nothing is read from this side now: it has sent FIN, or the other side exerts backpressure.
    fn is_unread(&mut self, side: Side) -> bool {
        self.direction_from(side).is_some_and(|(direction, ..)| {
            direction.state() != DirectionState::Open || direction.unsent() > 0
        })
    }

    /// Checks whether a side that is not read from was reset, and registers `cx` for it. If nothing is written to
    /// it either, the reset would go unnoticed, and the descriptors would leak.
    fn check_hang_up(&self, side: Side, cx: &mut Context<'_>) -> bool {
        let Some(socket) = self.socket(side) else {
            return true;
        };
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

    fn direction_from(&mut self, side: Side) -> Option<(&mut Direction, &TcpStream, &TcpStream)> {
        let Sockets::Runtime(Pair {
            downstream,
            upstream,
        }) = &self.sockets
        else {
            return None;
        };
        Some(match side {
            Side::Downstream => (&mut self.to_upstream, downstream, upstream),
            Side::Upstream => (&mut self.to_downstream, upstream, downstream),
        })
    }

    /// Moves the sockets to an io_uring session if both directions carry messages only. Returns whether they were
    /// moved, or lost.
    fn try_enter_uring(&mut self) -> bool {
        let (Some(up), Some(down)) = (
            self.to_upstream.selector_if_waiting(),
            self.to_downstream.selector_if_waiting(),
        ) else {
            return false;
        };
        if !MethodSelector::is_message_traffic([up, down]) {
            return false;
        }
        if !UringSession::ensure_ring() {
            self.to_upstream.defer_uring();
            return false;
        }
        if let Sockets::Runtime(pair) = mem::replace(&mut self.sockets, Sockets::Lost)
            && let Some(session) = UringSession::start(pair, Arc::clone(&self.stats))
        {
            self.stats.set_backend(Backend::Uring);
            self.sockets = Sockets::Uring(session);
        }
        true
    }

    /// Polls an io_uring session. Ready with `None` when the sockets are registered with the runtime.
    fn poll_uring(&mut self, cx: &mut Context<'_>) -> Poll<Option<Stop>> {
        let session = match &self.sockets {
            Sockets::Runtime(_) => return Poll::Ready(None),
            Sockets::Lost => return Poll::Ready(Some(Stop::Lost)),
            Sockets::Uring(session) => session,
        };
        let Poll::Ready(ended) = session.poll_ended(cx) else {
            self.idle.record_activity_at(session.last_activity());
            return self.idle.poll_expired(cx).map(|()| Some(Stop::Idle));
        };
        let moved = self.stats.tally();
        let [from_downstream, from_upstream] = ended.from;
        self.to_upstream.resume(moved.to_upstream, &from_downstream);
        self.to_downstream
            .resume(moved.to_downstream, &from_upstream);
        self.publish_backend();
        self.sockets = match ended.pair {
            Some(pair) => Sockets::Runtime(pair),
            None => Sockets::Lost,
        };
        // The kernel has reported the reset, and won't again.
        if from_downstream.end == SourceEnd::Dead {
            return Poll::Ready(Some(Stop::Reset(Side::Downstream)));
        }
        if from_upstream.end == SourceEnd::Dead {
            return Poll::Ready(Some(Stop::Reset(Side::Upstream)));
        }
        self.poll_uring(cx)
    }
}

/// Resets both sides unless the connection is finished: close(2) alone would send FIN, which signals that everything
/// was sent.
impl Drop for PairRelay {
    fn drop(&mut self) {
        // In an io_uring session the counts are the ring's.
        if !matches!(self.sockets, Sockets::Uring(_)) {
            self.record_moved();
        }
        let undelivered = self.to_upstream.unsent() + self.to_downstream.unsent();
        self.stats.set_undelivered(undelivered);
        self.stats.clear_backend();
        if let Sockets::Runtime(pair) = &self.sockets
            && !self.is_finished()
        {
            // These fail only on sockets that are closed already, which need no reset.
            let _ = stream::reset_on_close(&pair.downstream);
            let _ = stream::reset_on_close(&pair.upstream);
        }
    }
}
