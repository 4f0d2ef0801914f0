//! Both directions of a connection until one of them decides how it ends.

use std::future::poll_fn;
use std::mem;
use std::task::{Context, Poll, ready};

use peername_sys::event::readiness::clear_ready;
use peername_sys::tcp::stream;
use tokio::io::Interest;
use tokio::net::TcpStream;

use crate::direction::{Flow, State};
use crate::idle::Idle;
use crate::method::Method;
use crate::method::selector::Choice;
use crate::method::uring::{End, Talk};
use crate::{Ahead, Limits, Pair, Side, Tally};

/// A connection that is being relayed: two sockets, and what is held in each direction.
#[derive(Debug)]
pub(crate) struct Running<'t> {
    sockets: Sockets,
    to_upstream: Flow,
    to_downstream: Flow,
    /// The side whose FIN came first.
    first_finished: Option<Side>,
    idle: Idle,
    limits: Limits,
    tally: &'t mut Tally,
}

#[derive(Debug)]
enum Sockets {
    Here(Pair),
    Talking(Talk),
    /// The kernel refused to watch them, and they were reset.
    Lost,
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
    /// There are no sockets any more.
    Lost,
}

impl<'t> Running<'t> {
    pub(crate) fn new(
        pair: Pair,
        ahead: Ahead,
        method: Method,
        limits: Limits,
        tally: &'t mut Tally,
    ) -> Self {
        let mut idle = Idle::default();
        if let Some(limit) = limits.idle {
            idle.limit(limit);
        }
        let to_upstream = Flow::new(method, ahead);
        let to_downstream = Flow::new(method, Ahead::default());
        Self {
            sockets: Sockets::Here(pair),
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
        match self.direction_from(dead) {
            Some((flow, source, sink)) => flow.salvage(source, sink, cx),
            None => Poll::Ready(()),
        }
    }

    /// `None` when it was lost.
    pub(crate) fn socket(&self, side: Side) -> Option<&TcpStream> {
        match (&self.sockets, side) {
            (Sockets::Here(pair), Side::Downstream) => Some(&pair.downstream),
            (Sockets::Here(pair), Side::Upstream) => Some(&pair.upstream),
            _ => None,
        }
    }

    pub(crate) fn moved(&self) -> u64 {
        self.to_upstream.moved() + self.to_downstream.moved()
    }

    fn poll_stop(&mut self, cx: &mut Context<'_>) -> Poll<Stop> {
        loop {
            if let Some(stop) = ready!(self.poll_talk(cx)) {
                return Poll::Ready(stop);
            }
            let stop = self.poll_here(cx);
            if stop.is_ready() || !self.begins_to_talk() {
                return stop;
            }
        }
    }

    fn poll_here(&mut self, cx: &mut Context<'_>) -> Poll<Stop> {
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
        let (flow, source, sink) = self.direction_from(side)?;
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
        stream::shutdown_write(self.socket(across)?)
            .is_err()
            .then_some(across)
    }

    /// Whether nobody reads from this side now: it has sent FIN, or the other side takes nothing.
    fn is_unwatched(&mut self, side: Side) -> bool {
        self.direction_from(side)
            .is_some_and(|(flow, ..)| flow.state() != State::Open || flow.held() > 0)
    }

    /// Whether a side that nobody reads from was reset. If nothing is written to it either, nobody
    /// else would notice, and its descriptors would leak.
    fn has_hung_up(&self, side: Side, cx: &mut Context<'_>) -> bool {
        let Some(socket) = self.socket(side) else {
            return true;
        };
        for _ in 0..2 {
            // Cleared, writability is reported again only by an event: room in the send buffer, or
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

    fn direction_from(&mut self, side: Side) -> Option<(&mut Flow, &TcpStream, &TcpStream)> {
        let Sockets::Here(Pair {
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

    /// Lets the two sides converse by themselves if that is what they do; whether they do from now on.
    fn begins_to_talk(&mut self) -> bool {
        let (Some(up), Some(down)) = (self.to_upstream.waits(), self.to_downstream.waits()) else {
            return false;
        };
        if !Choice::are_messages([up, down]) {
            return false;
        }
        if !Talk::has_ring() {
            self.to_upstream.talks_later();
            return false;
        }
        if let Sockets::Here(pair) = mem::replace(&mut self.sockets, Sockets::Lost)
            && let Some(talk) = Talk::join(pair)
        {
            self.sockets = Sockets::Talking(talk);
        }
        true
    }

    /// Ready with `None` when the sockets are here.
    fn poll_talk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Stop>> {
        let talk = match &self.sockets {
            Sockets::Here(_) => return Poll::Ready(None),
            Sockets::Lost => return Poll::Ready(Some(Stop::Lost)),
            Sockets::Talking(talk) => talk,
        };
        let Poll::Ready(left) = talk.poll_left(cx) else {
            self.idle.alive_since(talk.alive());
            return self.idle.poll_expired(cx).map(|()| Some(Stop::Idle));
        };
        let [up, down] = talk.carried();
        let [from_downstream, from_upstream] = left.from;
        self.to_upstream.resume(up, &from_downstream);
        self.to_downstream.resume(down, &from_upstream);
        self.sockets = match left.pair {
            Some(pair) => Sockets::Here(pair),
            None => Sockets::Lost,
        };
        // The kernel has told of it, and won't again.
        if from_downstream.end == End::Dead {
            return Poll::Ready(Some(Stop::Reset(Side::Downstream)));
        }
        if from_upstream.end == End::Dead {
            return Poll::Ready(Some(Stop::Reset(Side::Upstream)));
        }
        self.poll_talk(cx)
    }
}

/// Closing would send FIN, which says that all was sent. Unless it was, RST tells the truth.
impl Drop for Running<'_> {
    fn drop(&mut self) {
        let talked = match &self.sockets {
            Sockets::Talking(talk) => talk.carried(),
            Sockets::Here(_) | Sockets::Lost => [0, 0],
        };
        *self.tally = Tally {
            to_upstream: self.to_upstream.moved() + talked[0],
            to_downstream: self.to_downstream.moved() + talked[1],
            undelivered: self.to_upstream.held() + self.to_downstream.held(),
        };
        if let Sockets::Here(pair) = &self.sockets
            && !self.is_finished()
        {
            // These fail only on sockets that are closed already, and then there is nobody to tell.
            let _ = stream::reset_on_close(&pair.downstream);
            let _ = stream::reset_on_close(&pair.upstream);
        }
    }
}
