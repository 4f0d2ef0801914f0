//! Accepts connections for all listeners of a worker.
//!
//! The listeners are in one epoll instance, which the runtime waits for: a listener costs its socket and nothing else,
//! no task and no registration in the runtime, so a thousand ports are as good as one.

use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use futures_util::FutureExt;
use peername_observe::throttle::Throttle;
use peername_sys::event::async_epoll::AsyncEpoll;
use peername_sys::tcp::listener;
use peername_sys::{is_broken_listener, is_per_connection_error};
use tokio::time::sleep;

use super::balance::{Handoff, WorkerBalancer};
use super::connection_limit::{ConnectionLimit, ConnectionPermit};
use super::connections;
use super::draining_listener::{Backlog, DrainingListener};
use super::serve::{Incoming, Serve};
use crate::addr::{LocalAddr, PeerAddr};
use crate::listeners::{Listener, ListenerId};

/// The listeners of one worker.
pub(crate) struct Acceptor<S: Serve> {
    poller: AsyncEpoll,
    listeners: HashMap<ListenerId, Listener>,
    draining: Vec<DrainingListener<S::Context>>,
    /// Counts closed listening sockets.
    closed: Arc<AtomicUsize>,
    service: Arc<S>,
    limit: ConnectionLimit,
    balancer: WorkerBalancer<Dispatched<S>>,
    /// Tokens of ready listeners; kept for its allocation.
    ready: Vec<u64>,
    /// The listener that was accepted from last, for round robin.
    last: u64,
}

/// An accepted connection with its permit and the context it is served with.
pub(crate) struct Dispatched<S: Serve> {
    incoming: Incoming,
    permit: ConnectionPermit,
    context: S::Context,
}

impl<S: Serve> Acceptor<S> {
    /// Without listeners; counts those it closes in `closed`. Needs a tokio runtime.
    pub(crate) fn new(
        service: Arc<S>,
        limit: ConnectionLimit,
        balancer: WorkerBalancer<Dispatched<S>>,
        closed: Arc<AtomicUsize>,
    ) -> io::Result<Self> {
        Ok(Self {
            poller: AsyncEpoll::new().map_err(io::Error::other)?,
            listeners: HashMap::new(),
            draining: Vec::new(),
            closed,
            service,
            limit,
            balancer,
            ready: Vec::new(),
            last: u64::MAX,
        })
    }

    /// Accepts from these listeners too.
    pub(crate) fn add(&mut self, listeners: Vec<Listener>) -> io::Result<()> {
        self.listeners.reserve(listeners.len());
        for listener in listeners {
            self.poller
                .add(&listener.socket, listener.id.0.into())
                .map_err(io::Error::other)?;
            self.listeners.insert(listener.id, listener);
        }
        Ok(())
    }

    /// Closes a listener. Its accept backlog is served first, because close(2) would reset the connections in it. As
    /// many are served now as there are permits, the rest by [`Acceptor::accept`]. If another process holds the socket
    /// too, the backlog is left to that process.
    pub(crate) fn close(&mut self, id: ListenerId) {
        let Some(listener) = self.listeners.remove(&id) else {
            return;
        };
        let _ = self.poller.delete(&listener.socket);
        let context = self.service.context(id);
        let mut draining = DrainingListener::new(listener, context, &self.closed);
        if draining.is_shared() {
            return;
        }
        if let Backlog::Empty = self.serve_backlog(&mut draining, self.limit.try_acquire()) {
            return;
        }
        if draining.limit_to_backlog() {
            self.draining.push(draining);
        }
    }

    /// Whether a listener is still open for its backlog.
    pub(crate) fn is_draining(&self) -> bool {
        !self.draining.is_empty()
    }

    /// Closes all listeners.
    pub(crate) fn close_all(&mut self) {
        let ids: Vec<_> = self.listeners.keys().copied().collect();
        ids.into_iter().for_each(|id| self.close(id));
    }

    /// Waits for connections and accepts a batch of them. Cancel-safe.
    ///
    /// An error of one connection is skipped; when descriptors or memory have run out, it pauses.
    ///
    /// # Errors
    ///
    /// A listener is broken.
    pub(crate) async fn accept(&mut self) -> io::Result<()> {
        // Draining listeners first: their connections came earlier and are bounded in number.
        if !self.draining.is_empty() {
            let permit = self.limit.acquire().await?;
            self.serve_draining(permit).await;
            return Ok(());
        }
        // Immediate if this was cancelled while it waited for a permit: nothing has cleared the readiness, so the
        // queued permit request is awaited again.
        let mut readable = self.poller.readable().await?;
        // Only when there is a connection to take: an idle worker must not hold the last permit.
        let mut permit = Some(self.limit.acquire().await?);
        let mut ready = std::mem::take(&mut self.ready);
        ready.clear();
        let mut more = self.find_ready(&mut ready)?;
        // Round robin: epoll keeps its order, and its first listener would get every permit that becomes free.
        ready.sort_unstable();
        let next = ready.partition_point(|&token| token <= self.last);
        ready.rotate_left(next);
        let mut exhausted = None;
        'listeners: for &token in &ready {
            let Some(listener) = self.listeners.get(&id_of(token)) else {
                continue;
            };
            for accepted in 0.. {
                let is_scarce = self.limit.available() < ACCEPT_BATCH * ready.len();
                let batch = if is_scarce { 1 } else { ACCEPT_BATCH };
                let next_permit = || permit.take().or_else(|| self.limit.try_acquire());
                let Some(permit) = (accepted < batch).then(next_permit).flatten() else {
                    more = true;
                    break;
                };
                match listener::accept(&listener.socket) {
                    Ok(accepted) => {
                        let context = self.service.context(listener.id);
                        self.dispatch(listener, accepted, permit, context);
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

    /// Serves the backlogs of draining listeners as far as there are permits, of which `permit` is the first.
    async fn serve_draining(&mut self, permit: ConnectionPermit) {
        let mut permit = Some(permit);
        while let Some(mut draining) = self.draining.pop() {
            match self.serve_backlog(&mut draining, permit) {
                Backlog::Empty => permit = self.limit.try_acquire(),
                Backlog::NeedsPermit => return self.draining.push(draining),
                Backlog::Stuck(error) => {
                    self.draining.push(draining);
                    return pause(&error).await;
                }
            }
        }
    }

    fn serve_backlog(
        &self,
        draining: &mut DrainingListener<S::Context>,
        permit: Option<ConnectionPermit>,
    ) -> Backlog {
        draining.serve(
            permit,
            &self.limit,
            |listener, accepted, permit, context| {
                self.dispatch(listener, accepted, permit, context);
            },
        )
    }

    /// Adds the tokens of listeners with connections in their backlog. Returns whether there may be more of them. A
    /// single listener is added without a call of epoll.
    fn find_ready(&self, ready: &mut Vec<u64>) -> io::Result<bool> {
        let mut ids = self.listeners.keys();
        if let (Some(only), None) = (ids.next(), ids.next()) {
            ready.push(only.0.into());
            return Ok(false);
        }
        self.poller.collect_ready(ready).map_err(io::Error::other)
    }

    /// Serves a connection here, or hands it off to a worker that has fewer.
    fn dispatch(
        &self,
        listener: &Listener,
        (stream, peer): (TcpStream, SocketAddr),
        permit: ConnectionPermit,
        context: S::Context,
    ) {
        let bound_to = listener.addr;
        let original = listener.is_transparent.then(|| stream.local_addr().ok());
        let listener = original.flatten().map_or(bound_to, LocalAddr::canonical);
        let dispatched = Dispatched {
            incoming: Incoming {
                stream,
                peer: PeerAddr(peer),
                listener,
                bound_to,
            },
            permit,
            context,
        };
        if let Some(ours) = self.balancer.hand_off(dispatched) {
            self.serve(ours);
        }
    }

    /// Serves a connection on this worker.
    pub(crate) fn serve(&self, (dispatched, guard): Handoff<Dispatched<S>>) {
        let Dispatched {
            incoming,
            permit,
            context,
        } = dispatched;
        let (entry, listed) = connections::insert(incoming.bound_to, incoming.peer);
        let key = listed.key();
        let serving = Arc::clone(&self.service).serve(incoming, entry, context);
        // Not an async block: its future would hold twice what it awaits.
        let task = tokio::spawn(serving.map(move |()| drop((permit, guard, listed))));
        connections::set_task(key, task.abort_handle());
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

/// A token is the id of its listener.
fn id_of(token: u64) -> ListenerId {
    ListenerId(u32::try_from(token).unwrap_or(u32::MAX))
}

/// Connections accepted in a row from one listener, before the next listener and the worker's open connections are served.
const ACCEPT_BATCH: usize = 16;
static EXHAUSTED: Throttle = Throttle::new(Duration::from_secs(10));
/// Long enough for connections to close, short enough not to be felt once they have.
const PAUSE: Duration = Duration::from_millis(50);
