//! Accepts connections for all listeners of a worker.
//!
//! The listeners are in one epoll instance, which the runtime waits for. A listener needs no task and no registration in the
//! runtime, so a thousand ports cost a thousand sockets and nothing else.

use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use futures_util::FutureExt;
use peername_sys::event::async_epoll::AsyncEpoll;
use peername_sys::tcp::listener;
use peername_sys::throttle::Throttle;
use peername_sys::{is_broken_listener, is_per_connection_error};
use tokio::time::sleep;

use super::balance::{Handoff, WorkerBalancer};
use super::command::SharedListeners;
use super::connection_limit::{ConnectionLimit, ConnectionPermit};
use super::connections;
use super::draining_listener::{Backlog, DrainingListener};
use super::serve::{Incoming, Serve};
use crate::addr::{LocalAddr, PeerAddr};
use crate::listeners::{Listener, ListenerId};

/// The listeners of one worker.
pub(crate) struct Acceptor<S: Serve> {
    poller: AsyncEpoll,
    /// By the token in the poller.
    listeners: HashMap<u64, Listener>,
    draining: Vec<DrainingListener<S::Context>>,
    /// Counts closed listening sockets.
    closed: Arc<AtomicUsize>,
    service: Arc<S>,
    limit: ConnectionLimit,
    balancer: WorkerBalancer<Dispatched<S>>,
    /// Tokens of ready listeners; kept for its allocation.
    ready: Vec<u64>,
    /// The token of the listener that was accepted from last, for round robin.
    last_token: u64,
}

/// An accepted connection with its permit and the context it is served with.
pub(crate) struct Dispatched<S: Serve> {
    incoming: Incoming,
    permit: ConnectionPermit,
    context: S::Context,
}

impl<S: Serve> Acceptor<S> {
    /// Creates an acceptor without listeners, which counts in `closed` the listeners that it closes. Needs a tokio runtime.
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
            last_token: u64::MAX,
        })
    }

    /// Accepts from these listeners too.
    pub(crate) fn add(&mut self, listeners: Vec<Listener>) -> io::Result<()> {
        self.listeners.reserve(listeners.len());
        for listener in listeners {
            let Some(token) =
                tokens_of(listener.id).find(|token| !self.listeners.contains_key(token))
            else {
                continue;
            };
            self.poller
                .add(&listener.socket, token)
                .map_err(io::Error::other)?;
            self.listeners.insert(token, listener);
        }
        Ok(())
    }

    /// Shares the listening sockets.
    pub(crate) fn share(&self) -> SharedListeners {
        self.listeners
            .values()
            .map(|listener| (listener.id, Arc::clone(&listener.socket)))
            .collect()
    }

    /// Leaves the accept backlogs of these listeners to another process that holds the sockets too.
    pub(crate) fn leave_backlogs(&mut self, ids: &[ListenerId]) {
        for listener in self.listeners.values_mut() {
            listener.is_shared |= ids.contains(&listener.id);
        }
    }

    /// Closes a listener. Its accept backlog is served first, because close(2) would reset the connections in it: as
    /// many connections as there are permits now, the rest by [`Acceptor::accept`]. If another process holds the socket
    /// too, the backlog is left to that process.
    pub(crate) fn close(&mut self, id: ListenerId) {
        let closed: Vec<_> = self
            .listeners
            .extract_if(|_, listener| listener.id == id)
            .map(|(_, listener)| listener)
            .collect();
        for listener in closed {
            self.drain(listener);
        }
    }

    fn drain(&mut self, listener: Listener) {
        let id = listener.id;
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
        for listener in std::mem::take(&mut self.listeners).into_values() {
            self.drain(listener);
        }
    }

    /// Waits for connections and accepts a batch of them. Cancel-safe.
    ///
    /// Skips a connection that fails; pauses when descriptors or memory have run out.
    ///
    /// # Errors
    ///
    /// A listener that the service can't lose is broken ([`Serve::can_lose`]).
    pub(crate) async fn accept(&mut self) -> io::Result<()> {
        // Draining listeners first: their connections came earlier and are bounded in number.
        if !self.draining.is_empty() {
            let permit = self.limit.acquire().await?;
            self.serve_draining(permit).await;
            return Ok(());
        }
        // If the last call was cancelled while it waited for a permit, this returns at once, because nothing has cleared the
        // readiness, and `acquire` goes on with the permit request that it has kept in the queue.
        let mut readable = self.poller.readable().await?;
        // Acquired only when there is a connection to accept: an idle worker must not hold the last permit.
        let mut first_permit = Some(self.limit.acquire().await?);
        let mut ready = std::mem::take(&mut self.ready);
        ready.clear();
        let mut more = self.find_ready(&mut ready)?;
        // Round robin: epoll returns listeners in the same order each time, and the first would get every free permit.
        ready.sort_unstable();
        let next = ready.partition_point(|&token| token <= self.last_token);
        ready.rotate_left(next);
        let mut exhausted = None;
        'listeners: for &token in &ready {
            let Some(listener) = self.listeners.get(&token) else {
                continue;
            };
            for attempt in 0.. {
                let is_scarce = self.limit.available() < ACCEPT_BATCH * ready.len();
                let batch = if is_scarce { 1 } else { ACCEPT_BATCH };
                let next_permit = || first_permit.take().or_else(|| self.limit.try_acquire());
                let Some(permit) = (attempt < batch).then(next_permit).flatten() else {
                    more = true;
                    break;
                };
                match listener::accept(&listener.socket) {
                    Ok(accepted) => {
                        let context = self.service.context(listener.id);
                        self.dispatch(listener, accepted, permit, context);
                        self.last_token = token;
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) if is_broken_listener(&error) => {
                        if !self.service.can_lose(listener.id) {
                            return Err(error);
                        }
                        let _ = self.poller.delete(&listener.socket);
                        self.listeners.remove(&token);
                        self.closed.fetch_add(1, Relaxed);
                        break;
                    }
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

    /// Adds to `ready` the tokens of listeners with connections in their backlog, and returns whether there may be more such
    /// listeners. A single listener is added without a call of epoll.
    fn find_ready(&self, ready: &mut Vec<u64>) -> io::Result<bool> {
        let mut tokens = self.listeners.keys();
        if let (Some(&only), None) = (tokens.next(), tokens.next()) {
            ready.push(only);
            return Ok(false);
        }
        self.poller.collect_ready(ready).map_err(io::Error::other)
    }

    /// Serves a connection on this worker, or hands it off to a worker that has fewer.
    fn dispatch(
        &self,
        listener: &Listener,
        (stream, peer): (TcpStream, SocketAddr),
        permit: ConnectionPermit,
        context: S::Context,
    ) {
        let bound_to = listener.addr;
        let original_destination = listener
            .is_transparent
            .then(|| stream.local_addr().ok())
            .flatten();
        let local = original_destination.map_or(bound_to, LocalAddr::canonical);
        let dispatched = Dispatched {
            incoming: Incoming {
                stream,
                peer: PeerAddr(peer),
                local,
                bound_to,
            },
            permit,
            context,
        };
        if let Some(kept) = self.balancer.hand_off(dispatched) {
            self.serve(kept);
        }
    }

    /// Serves a connection on this worker, whether it was accepted here or handed off by another one.
    pub(crate) fn serve(&self, (dispatched, guard): Handoff<Dispatched<S>>) {
        let Dispatched {
            incoming,
            permit,
            context,
        } = dispatched;
        let (entry, table_guard) = connections::insert(incoming.bound_to, incoming.peer);
        let key = table_guard.key();
        let serving = Arc::clone(&self.service).serve(incoming, entry, context);
        // Not an async block: its future would hold twice what it awaits.
        let task = tokio::spawn(serving.map(move |()| drop((permit, guard, table_guard))));
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

/// The tokens of a listener's sockets: a worker has more than one after an upgrade from a process with more workers.
fn tokens_of(id: ListenerId) -> impl Iterator<Item = u64> {
    (0..=u64::from(u32::MAX)).map(move |number| number << 32 | u64::from(id.0))
}

/// Connections accepted in a row from one listener, before the next listener and the worker's open connections are served.
const ACCEPT_BATCH: usize = 16;
static EXHAUSTED: Throttle = Throttle::new();
/// Long enough for connections to close, and short enough that clients hardly notice.
const PAUSE: Duration = Duration::from_millis(50);
