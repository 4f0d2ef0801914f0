//! Both directions of a connection until one of them decides how it ends.

use std::future::poll_fn;
use std::task::{Context, Poll};

use peername_sys::stream;
use tokio::io::Interest;
use tokio::net::TcpStream;

use crate::flow::{Flow, State, not_ready};
use crate::idle::Idle;
use crate::{Limits, Method, Pair, Side, Tally};

/// A connection that is being relayed: two sockets, and what is held in each direction.
#[derive(Debug)]
pub(crate) struct Running<'t> {
    pair: Pair,
    to_upstream: Flow,
    to_downstream: Flow,
    /// The side whose FIN came first.
    first_finished: Option<Side>,
    idle: Idle,
    limits: Limits,
    tally: &'t mut Tally,
}

/// Why both directions stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// FIN has been passed on both ways; this side's came first.
    Finished(Side),
    /// This side is dead.
    Reset(Side),
    /// Nothing moved for too long.
    Idle,
}

impl<'t> Running<'t> {
    pub(crate) fn new(pair: Pair, method: Method, limits: Limits, tally: &'t mut Tally) -> Self {
        let mut idle = Idle::default();
        if let Some(limit) = limits.idle {
            idle.limit(limit);
        }
        let (to_upstream, to_downstream) = (Flow::new(method), Flow::new(method));
        Self {
            pair,
            to_upstream,
            to_downstream,
            first_finished: None,
            idle,
            limits,
            tally,
        }
    }

    /// Relays until it is decided how the connection ends.
    pub(crate) async fn stop(&mut self) -> Stop {
        poll_fn(|cx| self.poll_stop(cx)).await
    }

    /// Moves what the dead side had sent to the other one; ready when it has all been accepted there,
    /// or can't be.
    pub(crate) fn poll_salvage(&mut self, dead: Side, cx: &mut Context<'_>) -> Poll<()> {
        let (flow, source, sink) = self.direction_from(dead);
        flow.salvage(source, sink, cx)
    }

    pub(crate) fn socket(&self, side: Side) -> &TcpStream {
        match side {
            Side::Downstream => &self.pair.downstream,
            Side::Upstream => &self.pair.upstream,
        }
    }

    pub(crate) fn moved(&self) -> u64 {
        self.to_upstream.moved() + self.to_downstream.moved()
    }

    fn poll_stop(&mut self, cx: &mut Context<'_>) -> Poll<Stop> {
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
            if self.is_unwatched(side) && self.has_hung_up(side, cx) {
                return Poll::Ready(Stop::Reset(side));
            }
        }
        if self.moved() != moved {
            self.idle.alive();
        }
        self.idle.poll_expired(cx).map(|()| Stop::Idle)
    }

    /// Pumps the direction that begins at `side`; returns the side that turned out to be dead.
    fn pump_from(&mut self, side: Side, cx: &mut Context<'_>) -> Option<Side> {
        let (flow, source, sink) = self.direction_from(side);
        if flow.state() == State::Finished {
            return None;
        }
        match flow.pump(source, sink, cx) {
            State::SourceDead => Some(side),
            State::SinkDead => Some(side.other()),
            State::Finished => self.finish_from(side),
            State::Open | State::SourceFinished => None,
        }
    }

    fn is_finished(&self) -> bool {
        [&self.to_upstream, &self.to_downstream]
            .iter()
            .all(|flow| flow.state() == State::Finished)
    }

    /// Passes on this side's FIN; returns the side across if that is dead. The second FIN goes with close(2), which
    /// is next.
    fn finish_from(&mut self, side: Side) -> Option<Side> {
        if self.first_finished.is_some() {
            return None;
        }
        self.first_finished = Some(side);
        self.idle.limit(self.limits.half_closed);
        let across = side.other();
        stream::finish(self.socket(across)).is_err().then_some(across)
    }

    /// Whether nobody reads from this side now: it has sent FIN, or the other side takes nothing.
    fn is_unwatched(&mut self, side: Side) -> bool {
        let (flow, ..) = self.direction_from(side);
        flow.state() != State::Open || flow.held() > 0
    }

    /// Whether a side that nobody reads from was reset. If nothing is written to it either, nobody
    /// else would notice, and its descriptors would leak.
    fn has_hung_up(&self, side: Side, cx: &mut Context<'_>) -> bool {
        let socket = self.socket(side);
        for _ in 0..2 {
            // Cleared, writability is reported again only by an event: room in the send buffer, or
            // the hang-up.
            not_ready(socket, Interest::WRITABLE);
            if socket.poll_write_ready(cx).is_pending() {
                return false;
            }
            if matches!(stream::take_error(socket), Ok(Some(_)) | Err(_)) {
                return true;
            }
        }
        false
    }

    fn direction_from(&mut self, side: Side) -> (&mut Flow, &TcpStream, &TcpStream) {
        let Pair {
            downstream,
            upstream,
        } = &self.pair;
        match side {
            Side::Downstream => (&mut self.to_upstream, downstream, upstream),
            Side::Upstream => (&mut self.to_downstream, upstream, downstream),
        }
    }
}

/// Closing would send FIN, which says that all was sent. Unless it was, RST tells the truth.
impl Drop for Running<'_> {
    fn drop(&mut self) {
        *self.tally = Tally {
            to_upstream: self.to_upstream.moved(),
            to_downstream: self.to_downstream.moved(),
            undelivered: self.to_upstream.held() + self.to_downstream.held(),
        };
        if !self.is_finished() {
            // These fail only on sockets that are closed already, and then there is nobody to tell.
            let _ = stream::reset_on_close(&self.pair.downstream);
            let _ = stream::reset_on_close(&self.pair.upstream);
        }
    }
}
