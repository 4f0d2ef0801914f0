//! Admission of accepted connections.

pub(crate) mod client_hello;
mod explicit_proxy;
pub mod jail;
pub(crate) mod tunnel;

use std::fmt::Display;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use arc_swap::ArcSwap;
use peername_server::addr::{ClaimedSource, PeerAddr, canonical};
use peername_server::header_limits::HeaderLimits;
use peername_server::header_reader;
use peername_server::listeners::ListenerId;
use peername_server::workers::connections::ConnectionEntry;
use peername_server::workers::services::ServiceHandle;
use peername_server::workers::{Incoming, Serve, WorkerTask};
use peername_sys::event::readiness::register_stream;
use peername_sys::tcp::original_destination;
use peername_sys::throttle::Throttle;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::audit::denials::UnrecordedConnection;
use crate::http::client_connection::ClientConnection;
use crate::http::in_flight::InFlightRecord;
use crate::request::target::Destination;
use crate::state::InterceptState;
use crate::stream::client_socket::{ClientSocket, ClientStream};
use crate::upstream::Upstream;
use jail::JailListener;
use tunnel::{Tunnel, TunnelCheck};

/// The kind of clients that connect to a listener.
#[derive(Clone, Debug)]
pub enum ListenerKind {
    /// Clients that are configured with the proxy.
    Explicit,
    /// Connections to other destinations, redirected by a REDIRECT or a TPROXY rule.
    Transparent,
    /// Connections of a jailed program to any destination.
    Jail(Arc<JailListener>),
}

/// The kind of a listener, and the configuration with which its connections are served.
#[derive(Debug)]
pub struct ListenerService {
    /// The kind of clients that connect.
    pub kind: ListenerKind,
    /// The configuration.
    pub state: Arc<InterceptState>,
}

/// Serves each connection by the service that its listener has at the time of accept(2).
#[derive(Debug)]
pub struct Intercept {
    services: ServiceHandle<ListenerService>,
    current: CurrentState,
}

/// The state in force, which a reload replaces. Clones share it.
#[derive(Clone, Debug)]
pub struct CurrentState(Arc<ArcSwap<InterceptState>>);

impl CurrentState {
    /// Starts with this state.
    pub fn new(state: Arc<InterceptState>) -> Self {
        Self(Arc::new(ArcSwap::new(state)))
    }

    /// The state in force.
    #[must_use]
    pub fn get(&self) -> Arc<InterceptState> {
        self.0.load_full()
    }

    /// Puts another state into force.
    pub fn replace(&self, state: Arc<InterceptState>) {
        self.0.store(state);
    }
}

impl Intercept {
    /// Serves the listeners of these services.
    pub fn new(services: ServiceHandle<ListenerService>, current: CurrentState) -> Self {
        Self { services, current }
    }

    /// The task of each worker beside its connections: it closes idle connections to origins, and starts the drain.
    pub fn worker_tasks(&self, workers: usize) -> Vec<WorkerTask> {
        let task = |_| -> WorkerTask {
            let current = self.current.clone();
            Box::new(move |mut phases| {
                Box::pin(async move {
                    let state = current.get();
                    tokio::select! {
                        () = phases.wait_draining() => {}
                        () = state.upstream.run_idle_sweep(|| current.get().config.idle_timeout) => {}
                    }
                    state.drain();
                    Upstream::close_idle();
                    io::Result::Ok(())
                })
            })
        };
        (0..workers).map(task).collect()
    }
}

impl ListenerService {
    async fn serve(
        &self,
        connection: Incoming,
        entry: Arc<ConnectionEntry>,
        unrecorded: UnrecordedConnection,
    ) {
        let Incoming { stream, peer, .. } = connection;
        let peer = PeerAddr(canonical(peer.0));
        self.state.sinks.metrics.connections.inc();
        let stream = match register_stream(stream) {
            Ok(stream) => stream,
            Err(failed) => {
                self.state.count_failed_connection(peer, "local_error");
                return warn(&UNWATCHED, peer.ip(), failed);
            }
        };
        let active = ActiveGuard::new(&self.state);
        // The future of a connection is large, and most of it is needed only while the connection lasts.
        Box::pin(self.admit(stream, entry, unrecorded)).await;
        drop(active);
    }

    /// Counts a refused connection, and resets it when it is closed.
    fn refuse(&self, stream: &TcpStream, peer: PeerAddr, reason: &'static str) {
        self.state.count_failed_connection(peer, reason);
        let _ = peername_sys::tcp::stream::reset_on_close(stream);
    }

    /// Admits a connection: reads its PROXY header if the peer is trusted to send one, then applies `--allow-client` and
    /// the per-client connection limit.
    async fn admit(
        &self,
        stream: TcpStream,
        entry: Arc<ConnectionEntry>,
        unrecorded: UnrecordedConnection,
    ) {
        let peer = PeerAddr(canonical(entry.peer().0));
        let mut client = match self.kind {
            // Every address is local in a jail, so the peer may have any address; but it is always a program on this host.
            ListenerKind::Jail(_) => (Ipv4Addr::LOCALHOST, peer.0.port()).into(),
            _ => peer.0,
        };
        let lists = self.state.lists();
        if lists.access.expects_header(peer.ip()) {
            match self.read_claim(&stream).await {
                Ok(claimed) => client = claimed.map_or(client, |claimed| claimed.0),
                Err(detail) => {
                    self.refuse(&stream, peer, "proxy_header");
                    if let Some(detail) = detail {
                        let why = format!("{detail} (--accept-proxy expects a header)");
                        warn(&NO_HEADER, peer.ip(), why);
                    }
                    return;
                }
            }
        }
        if !lists.access.admits(client.ip()) {
            self.refuse(&stream, peer, "client_not_allowed");
            return warn(&NOT_ALLOWED, client.ip(), "not a network of --allow-client");
        }
        drop(lists);
        // A jail is one client, whose further connections wait for a permit of the workers.
        let is_limited = !matches!(self.kind, ListenerKind::Jail(_));
        let permit = is_limited.then(|| self.state.client_limit.try_acquire(client.ip()));
        if let Some(None) = permit {
            self.refuse(&stream, peer, "too_many_connections");
            let why = "its open connections are more than twice as many as the free file descriptors allow; raise LimitNOFILE or `ulimit -n` \
                       if this is the normal load";
            return warn(&TOO_MANY, client.ip(), why);
        }
        let connection = ClientConnection::new(peer, client, entry);
        match &self.kind {
            ListenerKind::Explicit => {
                let socket = ClientSocket::new(stream, &connection.entry, &connection.cut);
                let stream = ClientStream::new(socket, Vec::new());
                explicit_proxy::serve(&self.state, connection, stream).await;
            }
            ListenerKind::Transparent => self.serve_redirected(stream, connection).await,
            ListenerKind::Jail(jail) => {
                jail.serve(&self.state, stream, connection, unrecorded)
                    .await;
            }
        }
    }

    /// Reads the source that the PROXY header claims; `None` if it claims none. The error is a detail for the log; `None` if
    /// the connection was closed without a byte, as by a health check.
    async fn read_claim(
        &self,
        stream: &TcpStream,
    ) -> Result<Option<ClaimedSource>, Option<String>> {
        let limits = HeaderLimits::default();
        let opening_timeout = self.state.config.opening_timeout;
        match timeout(opening_timeout, header_reader::read_claim(stream, &limits)).await {
            Ok(Ok(claimed)) => Ok(claimed),
            Ok(Err(error)) if error.is_empty_connection() => Err(None),
            Ok(Err(error)) => Err(Some(error.to_string())),
            Err(_) => Err(Some(format!(
                "no complete PROXY header within {opening_timeout:?}"
            ))),
        }
    }

    async fn serve_redirected(&self, stream: TcpStream, connection: Arc<ClientConnection>) {
        let client = &connection.info;
        let Ok(local) = stream.local_addr().map(canonical) else {
            return self.state.count_failed_connection(client.peer, "closed");
        };
        // TPROXY leaves the local address as the original destination.
        let destination = match original_destination(&stream, local.is_ipv6()) {
            Ok(Some(addr)) => canonical(addr),
            _ => local,
        };
        if self.state.upstream.is_own_listener(destination) {
            // Otherwise the Host header of plain HTTP would choose the origin, and this would be an open proxy.
            self.refuse(&stream, client.peer, "not_redirected");
            let why = "nothing on this host redirected them to the transparent listener; --listen is for clients that know the proxy";
            return warn(&NOT_REDIRECTED, client.peer.0.ip(), why);
        }
        let socket = ClientSocket::new(stream, &connection.entry, &connection.cut);
        let tunnel = Tunnel {
            destination: Destination::Redirected(destination),
            record: InFlightRecord::begin(&self.state, &connection, "CONNECT"),
            check: TunnelCheck::Pending,
        };
        tunnel
            .serve(&self.state, ClientStream::new(socket, Vec::new()))
            .await;
    }
}

impl Serve for Intercept {
    type Context = Option<Arc<ListenerService>>;

    fn context(&self, listener: ListenerId) -> Self::Context {
        self.services.load().get(listener).map(Arc::clone)
    }

    /// A jail's listener can lose its port to a server of the jailed program.
    fn can_lose(&self, listener: ListenerId) -> bool {
        let service = self.context(listener);
        service.is_some_and(|service| matches!(service.kind, ListenerKind::Jail(_)))
    }

    fn serve(
        self: Arc<Self>,
        connection: Incoming,
        entry: Arc<ConnectionEntry>,
        service: Self::Context,
    ) -> impl Future<Output = ()> + Send + 'static {
        // Made before the future is polled: a worker that ends drops futures that it has not polled yet.
        let served = service.map(|service| {
            let denials = service.state.sinks.denials.clone();
            (UnrecordedConnection::new(denials), service)
        });
        async move {
            // A listener has a service for as long as it accepts.
            if let Some((unrecorded, service)) = served {
                service.serve(connection, entry, unrecorded).await;
            }
        }
    }
}

fn warn(throttle: &Throttle, from: IpAddr, why: impl Display) {
    if let Some(suppressed) = throttle.pass() {
        tracing::warn!(
            suppressed,
            "connections refused, for example from {from}: {why}"
        );
    }
}

static NO_HEADER: Throttle = Throttle::new();
static TOO_MANY: Throttle = Throttle::new();
static NOT_ALLOWED: Throttle = Throttle::new();
static NOT_REDIRECTED: Throttle = Throttle::new();
static UNWATCHED: Throttle = Throttle::new();

/// Counts a connection in `peername_intercept_connections_active` until it is dropped.
struct ActiveGuard<'a>(&'a InterceptState);

impl<'a> ActiveGuard<'a> {
    fn new(state: &'a InterceptState) -> Self {
        state.sinks.metrics.active.inc();
        Self(state)
    }
}

impl Drop for ActiveGuard<'_> {
    fn drop(&mut self) {
        self.0.sinks.metrics.active.dec();
    }
}
