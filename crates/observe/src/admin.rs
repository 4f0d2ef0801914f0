//! The admin endpoint of a running command: metrics, health, its open connections and a page for people over HTTP, on a
//! listener of its own.

mod address;
pub mod events;
pub mod history;
mod listener;
pub mod listing;
mod page;
pub mod process_metrics;
mod routes;
pub mod samples;
mod status;

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::future;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use http::header::{self, HeaderMap, HeaderValue};
use http::uri::Authority;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use peername_sys::ipc::unix_socket_file::UnixSocketFile;
use prometheus_client::registry::Registry;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::unix::UCred;
use tokio::net::{TcpListener, UnixListener};
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::task::{AbortHandle, yield_now};
use tokio::time::{sleep, timeout};
use tracing::Level;

pub use address::{AdminAddr, ParseAdminAddrError};
pub use events::ACCEPT_PAUSED;
pub use listener::{AdminHandle, AdminListener};

use events::{EventFeed, LastRefusal, StreamPermits};
use history::History;
use process_metrics::{LimitGauge, ProcessCollector};

use crate::connections::ConnectionSource;

/// The health of a command, as `/healthz` and `/readyz` report it.
pub trait Health: Send + Sync + 'static {
    /// The reason that is reported while `check_liveness` does not return.
    const HANG_REASON: &'static str = "a worker or the control thread hangs";

    /// Returns once every worker, or what serves in their stead, has answered; the endpoint sets the deadline.
    fn check_liveness(&self) -> impl Future<Output = ()> + Send;

    /// Whether clients should be sent here.
    ///
    /// # Errors
    ///
    /// Why not, in a line of text.
    fn check_readiness(&self) -> impl Future<Output = Result<(), String>> + Send;

    /// A problem despite which clients should be sent here, such as one that only some of them have: `/readyz` appends it to `ready`.
    fn warning(&self) -> impl Future<Output = Option<String>> + Send {
        future::ready(None)
    }

    /// The last refusal of each reason.
    fn last_refusals(&self) -> BTreeMap<String, LastRefusal> {
        BTreeMap::new()
    }

    /// Whether the process drains: it ends once its connections have ended.
    fn is_draining(&self) -> bool {
        false
    }
}

/// The kind of listener at which a request arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Via {
    Network,
    /// The process at the other end (SO_PEERCRED), for the log. If the socket is forwarded, it is the forwarding process.
    UnixSocket(Option<UCred>),
}

/// Answers requests to the admin endpoint.
pub struct AdminServer<H> {
    hosts: AllowedHosts,
    health: H,
    registry: Registry,
    resources: Resources,
    started: Instant,
    feed: EventFeed,
    /// The runtime of the command's control side.
    control: Handle,
    /// The result of the last check of readiness, for the metrics.
    is_ready: Arc<AtomicBool>,
}

/// What a command offers beside metrics and health. A path without its resource is 404.
#[derive(Default)]
pub struct Resources {
    /// The name of the command, for `/`.
    pub command: &'static str,
    /// What an operator can do about a reason in the metrics; `None` if there is nothing to do.
    pub advise: Option<fn(&str) -> Option<&'static str>>,
    /// `/connections`.
    pub connections: Option<Box<dyn ConnectionSource>>,
    /// `/sessions`.
    pub sessions: Option<Box<dyn ConnectionSource>>,
    /// `/log-level`.
    pub log_level: Option<Box<dyn LogLevel>>,
    /// `/config`.
    pub config: Option<ConfigInForce>,
    /// The reloads and upgrades, for `/status`, and the maintenance.
    pub history: History,
    /// The limit on open connections.
    pub limit: Option<Arc<dyn LimitGauge>>,
}

/// The configuration in force, as JSON. A reload replaces it; clones share it.
#[derive(Clone, Debug)]
pub struct ConfigInForce(Arc<ArcSwap<String>>);

impl ConfigInForce {
    /// The configuration of the start.
    pub fn new(json: &str) -> Self {
        Self(Arc::new(ArcSwap::from_pointee(json.to_owned())))
    }

    /// Replaces it.
    pub fn set(&self, json: &str) {
        self.0.store(Arc::new(json.to_owned()));
    }
}

/// The level of the log, which can be changed while the command runs.
pub trait LogLevel: Send + Sync + 'static {
    /// The level.
    fn get(&self) -> Level;

    /// Sets the level.
    ///
    /// # Errors
    ///
    /// The log has ended: a line of text for the caller.
    fn set(&self, level: Level) -> Result<(), String>;
}

/// The names that Host and Origin of a request may have, besides IP addresses and localhost. Were any name allowed, a web page
/// could make its own name resolve to this server, and read the answers (DNS rebinding). A browser reaches a Unix socket, too,
/// once `ssh -L` forwards a port to it.
#[derive(Clone, Debug, Default)]
pub struct AllowedHosts(pub Vec<String>);

impl<H: Health> AdminServer<H> {
    /// Serves these metrics, this health and these resources. To be called on the command's control thread, whose liveness
    /// is checked, too.
    pub fn new(
        mut registry: Registry,
        health: H,
        hosts: AllowedHosts,
        resources: Resources,
    ) -> Self {
        let is_ready = Arc::<AtomicBool>::default();
        registry.register_collector(Box::new(ProcessCollector {
            is_ready: Arc::clone(&is_ready),
            history: resources.history.clone(),
            limit: resources.limit.clone(),
        }));
        Self {
            hosts,
            health,
            registry,
            resources,
            started: Instant::now(),
            feed: EventFeed::default(),
            control: Handle::current(),
            is_ready,
        }
    }

    /// Returns once the control thread and the workers have answered.
    async fn check_liveness(&self) {
        // An error means that the runtime has ended, and the process ends with it.
        let _ = self.control.spawn(async {}).await;
        self.health.check_liveness().await;
    }

    /// Answers on each of `listeners`, on the current runtime, until [`ServedListener::leave`]. Each has its own limits of
    /// open connections and streams, so that clients of one can't keep those of another out.
    pub fn start(self, listeners: Vec<AdminListener>) -> Vec<ServedListener> {
        let server = Arc::new(self);
        let events = Arc::clone(&server);
        tokio::spawn(async move { events.publish_events().await });
        listeners
            .into_iter()
            .map(|listener| {
                listener.take_path_ownership();
                let (serving, left) = watch::channel(());
                let accept_loop = tokio::spawn(Arc::clone(&server).serve(listener, left));
                ServedListener {
                    accept_loop: accept_loop.abort_handle(),
                    serving,
                }
            })
            .collect()
    }

    async fn serve(self: Arc<Self>, listener: AdminListener, left: watch::Receiver<()>) {
        let served = match listener {
            AdminListener::Tcp(socket) => self.serve_tcp(socket, left).await,
            // `file` is kept until the end: dropping it removes the socket's path.
            AdminListener::Unix(file) => self.serve_unix(&file, left).await,
        };
        if let Err(error) = served {
            tracing::warn!("--admin: epoll_ctl(2): {error}");
        }
    }

    async fn serve_tcp(
        self: Arc<Self>,
        socket: std::net::TcpListener,
        left: watch::Receiver<()>,
    ) -> io::Result<()> {
        let listener = TcpListener::from_std(socket)?;
        let mut open = OpenConnections::default();
        let streams = StreamPermits::default();
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    let (via, streams, left) = (Via::Network, streams.clone(), left.clone());
                    open.insert(self.spawn_connection(stream, via, streams, left));
                }
                Err(_) => sleep(ACCEPT_RETRY).await,
            }
        }
    }

    async fn serve_unix(
        self: Arc<Self>,
        file: &UnixSocketFile,
        left: watch::Receiver<()>,
    ) -> io::Result<()> {
        let listener = UnixListener::from_std(file.socket().try_clone()?)?;
        let mut open = OpenConnections::default();
        let streams = StreamPermits::default();
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    let via = Via::UnixSocket(stream.peer_cred().ok());
                    let (streams, left) = (streams.clone(), left.clone());
                    open.insert(self.spawn_connection(stream, via, streams, left));
                }
                Err(_) => sleep(ACCEPT_RETRY).await,
            }
        }
    }

    fn spawn_connection<IO>(
        self: &Arc<Self>,
        stream: IO,
        via: Via,
        streams: StreamPermits,
        left: watch::Receiver<()>,
    ) -> AbortHandle
    where
        IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let server = Arc::clone(self);
        let task = tokio::spawn(async move {
            let requested = Notify::new();
            let service = service_fn(|request| {
                let (server, streams, requested) = (&server, &streams, &requested);
                async move {
                    requested.notify_one();
                    // If it has to shut down, the response announces it.
                    yield_now().await;
                    Ok::<_, Infallible>(server.respond(request, via, streams).await)
                }
            });
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_TIMEOUT)
                .serve_connection(TokioIo::new(stream), service);
            tokio::pin!(connection);
            // An error means that the client has closed the connection.
            tokio::select! {
                biased;
                _ = connection.as_mut() => return,
                () = wait_shutdown(left, &requested) => connection.as_mut().graceful_shutdown(),
            }
            let _ = connection.await;
        });
        task.abort_handle()
    }
}

/// A listener while it is served.
#[derive(Debug)]
pub struct ServedListener {
    accept_loop: AbortHandle,
    /// Dropping this ends the connections.
    serving: watch::Sender<()>,
}

impl ServedListener {
    /// Leaves the clients to another process that has the socket: closes this process's socket, idle connections, and each
    /// other connection after the request in flight.
    pub fn leave(self) {
        self.accept_loop.abort();
        drop(self.serving);
    }
}

/// Waits until a connection has to be shut down, because its listener was left. The first request of a new connection may be
/// on the way, and is answered.
async fn wait_shutdown(mut left: watch::Receiver<()>, requested: &Notify) {
    while left.changed().await.is_ok() {}
    // The runtime learns meanwhile which sockets are readable.
    yield_now().await;
    // Returns at once if there was a request.
    let _ = timeout(FIRST_REQUEST_GRACE, requested.notified()).await;
}

/// The open connections, oldest first. A new one evicts the oldest when there are too many, so that clients that are
/// silent or do not read can't keep a probe or a scraper out.
#[derive(Debug, Default)]
struct OpenConnections(VecDeque<AbortHandle>);

impl OpenConnections {
    fn insert(&mut self, connection: AbortHandle) {
        self.0.retain(|open| !open.is_finished());
        if self.0.len() >= MAX_CONNECTIONS
            && let Some(oldest) = self.0.pop_front()
        {
            oldest.abort();
        }
        self.0.push_back(connection);
    }
}

impl AllowedHosts {
    /// Whether each Host and Origin of a request names an allowed host.
    fn admit(&self, headers: &HeaderMap) -> bool {
        let is_allowed = |value: &HeaderValue, prefix| {
            value
                .to_str()
                .ok()
                .and_then(|text| text.strip_prefix(prefix))
                .and_then(|text| text.parse::<Authority>().ok())
                .is_some_and(|authority| self.contains(authority.host()))
        };
        let mut hosts = headers.get_all(header::HOST).iter();
        let mut origins = headers.get_all(header::ORIGIN).iter();
        hosts.all(|host| is_allowed(host, ""))
            && origins.all(|origin| is_allowed(origin, "http://"))
    }

    fn contains(&self, host: &str) -> bool {
        let address = host.trim_start_matches('[').trim_end_matches(']');
        address.parse::<IpAddr>().is_ok()
            || host.eq_ignore_ascii_case("localhost")
            || self
                .0
                .iter()
                .any(|allowed| host.eq_ignore_ascii_case(allowed))
    }
}

/// Limit of open connections of one listener: scrapers, probes and open pages are few.
pub const MAX_CONNECTIONS: usize = 32;
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// Time for the first request of a connection whose listener was left.
const FIRST_REQUEST_GRACE: Duration = Duration::from_secs(2);
const ACCEPT_RETRY: Duration = Duration::from_millis(50);
