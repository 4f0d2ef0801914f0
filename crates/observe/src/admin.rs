//! The admin endpoint of a running command: `/metrics`, `/healthz` and `/readyz` over HTTP, on a listener of its own.

mod address;
mod listener;

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderValue};
use http::uri::Authority;
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus_client::encoding::text;
use prometheus_client::registry::Registry;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

pub use address::{AdminAddr, ParseAdminAddrError};
pub use listener::{AdminListener, UnixSocketFile};

/// The health of a command, as `/healthz` and `/readyz` report it.
pub trait Health: Send + Sync + 'static {
    /// Returns once every worker has answered; the endpoint sets the deadline.
    fn check_liveness(&self) -> impl Future<Output = ()> + Send;

    /// Whether clients should be sent here.
    ///
    /// # Errors
    ///
    /// Why not, in a line of text.
    fn check_readiness(&self) -> impl Future<Output = Result<(), String>> + Send;
}

/// How a request arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Via {
    Network,
    UnixSocket,
}

/// Answers requests to the admin endpoint.
pub struct AdminServer<H> {
    hosts: AllowedHosts,
    health: H,
    registry: Registry,
}

/// Names in Host and Origin that are answered, besides IP addresses and localhost. Without that check, a web page could
/// make its own name resolve to this server, and read the answers (DNS rebinding).
#[derive(Clone, Debug, Default)]
pub struct AllowedHosts(pub Vec<String>);

impl<H: Health> AdminServer<H> {
    /// Serves these metrics and this health.
    pub fn new(registry: Registry, health: H, hosts: AllowedHosts) -> Self {
        Self {
            hosts,
            health,
            registry,
        }
    }

    /// Answers on `listener` until the process ends. Over a Unix socket Host and Origin are not checked: no browser
    /// connects to one.
    pub async fn serve(self, listener: AdminListener) {
        let server = Arc::new(self);
        // Kept until the end: dropping it removes the socket's path.
        let served = match listener {
            AdminListener::Tcp(socket) => server.serve_tcp(socket).await,
            AdminListener::Unix(file) => server.serve_unix(&file).await,
        };
        if let Err(error) = served {
            tracing::warn!("--admin: epoll_ctl(2): {error}");
        }
    }

    async fn serve_tcp(self: Arc<Self>, socket: std::net::TcpListener) -> io::Result<()> {
        let listener = TcpListener::from_std(socket)?;
        let mut open = OpenConnections::default();
        loop {
            match listener.accept().await {
                Ok((stream, _)) => open.insert(self.spawn_connection(stream, Via::Network)),
                Err(_) => sleep(ACCEPT_RETRY).await,
            }
        }
    }

    async fn serve_unix(self: Arc<Self>, file: &UnixSocketFile) -> io::Result<()> {
        let listener = UnixListener::from_std(file.socket.try_clone()?)?;
        let mut open = OpenConnections::default();
        loop {
            match listener.accept().await {
                Ok((stream, _)) => open.insert(self.spawn_connection(stream, Via::UnixSocket)),
                Err(_) => sleep(ACCEPT_RETRY).await,
            }
        }
    }

    fn spawn_connection<IO>(self: &Arc<Self>, stream: IO, via: Via) -> AbortHandle
    where
        IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let server = Arc::clone(self);
        let task = tokio::spawn(async move {
            let service = service_fn(|request| {
                let server = &server;
                async move { Ok::<_, Infallible>(server.respond(&request, via).await) }
            });
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_TIMEOUT)
                .serve_connection(TokioIo::new(stream), service);
            // An error means that the client is gone.
            let _ = connection.await;
        });
        task.abort_handle()
    }

    async fn respond(&self, request: &Request<Incoming>, via: Via) -> Response<Full<Bytes>> {
        if via == Via::Network && !self.hosts.admit(request.headers()) {
            return plain(StatusCode::MISDIRECTED_REQUEST, OTHER_HOST);
        }
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return plain(StatusCode::METHOD_NOT_ALLOWED, "GET, please\n");
        }
        match request.uri().path() {
            "/metrics" => self.metrics(),
            "/healthz" => match timeout(LIVENESS_TIMEOUT, self.health.check_liveness()).await {
                Ok(()) => plain(StatusCode::OK, "ok\n"),
                Err(_) => plain(StatusCode::SERVICE_UNAVAILABLE, "a worker hangs\n"),
            },
            "/readyz" => match self.health.check_readiness().await {
                Ok(()) => plain(StatusCode::OK, "ready\n"),
                Err(reason) => respond_with(StatusCode::SERVICE_UNAVAILABLE, TEXT, reason + "\n"),
            },
            _ => plain(StatusCode::NOT_FOUND, "/metrics, /healthz, /readyz\n"),
        }
    }

    fn metrics(&self) -> Response<Full<Bytes>> {
        let mut out = String::new();
        match text::encode(&mut out, &self.registry) {
            Ok(()) => respond_with(StatusCode::OK, OPEN_METRICS, out),
            Err(_) => plain(
                StatusCode::INTERNAL_SERVER_ERROR,
                "metrics can't be written\n",
            ),
        }
    }
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
    /// Whether Host and Origin, as far as they are there, are allowed.
    fn admit(&self, headers: &HeaderMap) -> bool {
        let is_allowed = |value: &HeaderValue, prefix| {
            let text = value
                .to_str()
                .ok()
                .and_then(|text| text.strip_prefix(prefix));
            let authority = text.and_then(|text| text.parse::<Authority>().ok());
            authority.is_some_and(|authority| self.contains(authority.host()))
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

fn plain(status: StatusCode, text: &'static str) -> Response<Full<Bytes>> {
    respond_with(status, TEXT, text.to_owned())
}

fn respond_with(
    status: StatusCode,
    content_type: &'static str,
    body: String,
) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

const OTHER_HOST: &str = "the Host or Origin of the request is not one of this server's; use http and its address, or add --admin-host NAME\n";
const TEXT: &str = "text/plain; charset=utf-8";
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// Scrapers are few.
const MAX_CONNECTIONS: usize = 32;
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// A worker that has not answered by then hangs.
const LIVENESS_TIMEOUT: Duration = Duration::from_secs(2);
const ACCEPT_RETRY: Duration = Duration::from_millis(50);
