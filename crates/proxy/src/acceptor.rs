//! Accepting, for all of a worker's listeners at once.
//!
//! They stand in one epoll instance, which the runtime waits for: a listener costs its socket and
//! nothing else, no task and no registration in the runtime, so that a thousand ports are as good as
//! one.

use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use futures_util::FutureExt;
use peername_sys::event::async_epoll::AsyncEpoll;
use peername_sys::tcp::listener;
use peername_sys::{is_broken_listener, is_per_connection_error};
use tokio::time::sleep;

use crate::addr::{LocalAddr, PeerAddr};
use crate::listeners::Listening;
use crate::seat::{Handed, Seat};
use crate::server::{Incoming, Serve};
use crate::service::ListenerId;
use crate::slots::{Slot, Slots};
use crate::throttle::Throttle;

/// A worker's listeners.
pub(crate) struct Acceptor<S: Serve> {
    poller: AsyncEpoll,
    listening: HashMap<ListenerId, Listening>,
    /// Those that are to be closed when who waits there is served.
    leaving: Vec<Leaving<S>>,
    /// How many have been closed.
    closed: Arc<AtomicUsize>,
    service: Arc<S>,
    slots: Slots,
    seat: Seat<Accepted<S>>,
    ready: Vec<u64>,
    /// Whose connection was accepted last.
    last: u64,
}

/// A listener that has been closed but for its queue, and what serves that: the services of today may not know it.
struct Leaving<S: Serve> {
    listening: Listening,
    by: S::By,
    /// How many of those in the queue are waited for. Others that come would keep it open for as long as they do.
    waiting: usize,
    /// Is told when the socket goes.
    closed: Arc<AtomicUsize>,
}

impl<S: Serve> Drop for Leaving<S> {
    fn drop(&mut self) {
        self.closed.fetch_add(1, Relaxed);
    }
}

/// A connection, and what it is to be served by.
pub(crate) struct Accepted<S: Serve> {
    stream: TcpStream,
    peer: PeerAddr,
    listener: LocalAddr,
    slot: Slot,
    by: S::By,
}

/// What became of those who waited in a listener's queue.
enum Queue {
    /// All are served.
    Empty,
    /// There is no place for the next.
    Waits,
    /// accept(2) failed as it may not fail the next time: descriptors or memory have run out.
    Stuck(io::Error),
}

impl<S: Serve> Acceptor<S> {
    /// Without listeners, of which it counts those that are `closed`. Needs a tokio runtime.
    pub(crate) fn new(
        service: Arc<S>,
        slots: Slots,
        seat: Seat<Accepted<S>>,
        closed: Arc<AtomicUsize>,
    ) -> io::Result<Self> {
        Ok(Self {
            poller: AsyncEpoll::new().map_err(io::Error::other)?,
            listening: HashMap::new(),
            leaving: Vec::new(),
            closed,
            service,
            slots,
            seat,
            ready: Vec::new(),
            last: u64::MAX,
        })
    }

    /// Accepts from these too.
    pub(crate) fn add(&mut self, listeners: Vec<Listening>) -> io::Result<()> {
        self.listening.reserve(listeners.len());
        for listening in listeners {
            self.poller
                .add(&listening.socket, listening.id.0.into())
                .map_err(io::Error::other)?;
            self.listening.insert(listening.id, listening);
        }
        Ok(())
    }

    /// Closes a listener. Who waits in its queue is served, for closing would reset them: as far as there are places at
    /// once, and by [`Acceptor::accept`] when there are again. Unless another process holds it too, which they wait for
    /// then.
    pub(crate) fn close(&mut self, id: ListenerId) {
        let Some(listening) = self.listening.remove(&id) else {
            return;
        };
        let _ = self.poller.delete(&listening.socket);
        let mut leaving = Leaving {
            by: self.service.by(id),
            listening,
            waiting: usize::MAX,
            closed: Arc::clone(&self.closed),
        };
        if leaving.listening.is_shared {
            return;
        }
        if let Queue::Empty = self.serve_queue(&mut leaving, self.slots.take()) {
            return;
        }
        // What fails is only that others come too.
        let socket = &leaving.listening.socket;
        let _ = listener::shrink_backlog(socket);
        leaving.waiting = listener::accept_queue_len(socket).unwrap_or(usize::MAX);
        if leaving.waiting > 0 {
            self.leaving.push(leaving);
        }
    }

    /// Whether a listener is still there, for those in its queue.
    pub(crate) fn is_leaving(&self) -> bool {
        !self.leaving.is_empty()
    }

    /// Serves who waits there as far as there are places, of which this is the first.
    fn serve_queue(&self, leaving: &mut Leaving<S>, mut slot: Option<Slot>) -> Queue {
        let Leaving {
            listening,
            by,
            waiting,
            ..
        } = leaving;
        while *waiting > 0 {
            let Some(place) = slot else {
                return Queue::Waits;
            };
            match listener::accept(&listening.socket) {
                Ok(accepted) => self.begin(listening, accepted, place, by.clone()),
                Err(error) if is_per_connection_error(&error) => {}
                Err(error)
                    if error.kind() == ErrorKind::WouldBlock || is_broken_listener(&error) =>
                {
                    return Queue::Empty;
                }
                Err(error) => return Queue::Stuck(error),
            }
            *waiting -= 1;
            slot = self.slots.take();
        }
        Queue::Empty
    }

    /// Closes all.
    pub(crate) fn close_all(&mut self) {
        let ids: Vec<_> = self.listening.keys().copied().collect();
        ids.into_iter().for_each(|id| self.close(id));
    }

    /// Waits until somebody comes, and accepts who is there. May be dropped while it waits.
    ///
    /// What concerns one connection is skipped, and when descriptors or memory have run out, waiting is
    /// all that helps.
    ///
    /// # Errors
    ///
    /// A listener is broken.
    pub(crate) async fn accept(&mut self) -> io::Result<()> {
        // First, as they are no more than there were: without a place for them this worker has none for others.
        if !self.leaving.is_empty() {
            let slot = self.slots.wait().await?;
            self.serve_leaving(slot).await;
            return Ok(());
        }
        // At once when this was dropped while it waited for a place: nothing has cleared it, so that place is not forgotten.
        let mut readable = self.poller.readable().await?;
        // Only with a connection to take: an idle worker must not keep others from the last one.
        let mut slot = Some(self.slots.wait().await?);
        let mut ready = std::mem::take(&mut self.ready);
        ready.clear();
        let mut more = self.find_ready(&mut ready)?;
        // epoll keeps its order, and whoever comes first in it would get every place that becomes free.
        ready.sort_unstable();
        let next = ready.partition_point(|&token| token <= self.last);
        ready.rotate_left(next);
        let mut exhausted = None;
        'listeners: for &token in &ready {
            let Some(listening) = self.listening.get(&id_of(token)) else {
                continue;
            };
            for turn in 0.. {
                let scarce = self.slots.free() < AT_ONCE * ready.len();
                let at_once = if scarce { 1 } else { AT_ONCE };
                let free = || slot.take().or_else(|| self.slots.take());
                let Some(place) = (turn < at_once).then(free).flatten() else {
                    more = true;
                    break;
                };
                match listener::accept(&listening.socket) {
                    Ok(accepted) => {
                        let by = self.service.by(listening.id);
                        self.begin(listening, accepted, place, by);
                        self.last = token;
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) if is_broken_listener(&error) => return Err(error),
                    Err(error) if is_per_connection_error(&error) => {}
                    Err(error) => {
                        exhausted = Some(error);
                        break 'listeners;
                    }
                }
            }
        }
        self.ready = ready;
        match exhausted {
            Some(error) => pause(&error).await,
            None if !more => readable.clear_ready(),
            None => tokio::task::yield_now().await,
        }
        Ok(())
    }

    /// Serves who waits at the listeners that are to be closed, as far as there are places, of which this is the first.
    async fn serve_leaving(&mut self, slot: Slot) {
        let mut slot = Some(slot);
        while let Some(mut leaving) = self.leaving.pop() {
            match self.serve_queue(&mut leaving, slot) {
                Queue::Empty => slot = self.slots.take(),
                Queue::Waits => return self.leaving.push(leaving),
                Queue::Stuck(error) => {
                    self.leaving.push(leaving);
                    return pause(&error).await;
                }
            }
        }
    }

    /// Adds the tokens of listeners with somebody in their queue; returns whether there may be more of them. One that is
    /// alone needs no question.
    fn find_ready(&self, ready: &mut Vec<u64>) -> io::Result<bool> {
        let mut ids = self.listening.keys();
        if let (Some(only), None) = (ids.next(), ids.next()) {
            ready.push(only.0.into());
            return Ok(false);
        }
        self.poller.collect_ready(ready).map_err(io::Error::other)
    }

    /// Serves a connection, or has it served by a worker that has less to do.
    fn begin(
        &self,
        listening: &Listening,
        (stream, peer): (TcpStream, SocketAddr),
        slot: Slot,
        by: S::By,
    ) {
        let asked = listening.is_transparent.then(|| stream.local_addr().ok());
        let accepted = Accepted {
            listener: asked.flatten().map_or(listening.addr, LocalAddr::canonical),
            by,
            stream,
            peer: PeerAddr(peer),
            slot,
        };
        if let Some(ours) = self.seat.place(accepted) {
            self.take(ours);
        }
    }

    /// Serves a connection.
    pub(crate) fn take(&self, (accepted, open): Handed<Accepted<S>>) {
        let Accepted {
            stream,
            peer,
            listener,
            slot,
            by,
        } = accepted;
        let incoming = Incoming {
            stream,
            peer,
            listener,
        };
        let serving = Arc::clone(&self.service).serve(incoming, by);
        // Not an async block, which would have room for what it awaits twice.
        tokio::spawn(serving.map(|()| drop((slot, open))));
    }
}

async fn pause(error: &io::Error) {
    if let Some(suppressed) = EXHAUSTED.pass() {
        tracing::warn!(
            suppressed,
            "accept(2): {error}; trying again. If descriptors or memory have run out, raise LimitNOFILE \
             or the limits of the service"
        );
    }
    sleep(PAUSE).await;
}

/// Tokens are made of ids.
fn id_of(token: u64) -> ListenerId {
    ListenerId(u32::try_from(token).unwrap_or(u32::MAX))
}

/// Connections of one listener before the others, and the worker's open connections, have their turn.
const AT_ONCE: usize = 16;
static EXHAUSTED: Throttle = Throttle::new(Duration::from_secs(10));
/// Long enough for connections to close, short enough not to be felt once they have.
const PAUSE: Duration = Duration::from_millis(50);
