//! `/metrics`, `/healthz` and `/readyz`, on a listener of their own.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr, TcpListener};
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
use peername_proxy::listeners::BindError;
use peername_proxy::server::Pulse;
use peername_sys::socket::BindOptions;
use peername_sys::tcp::listener;
use prometheus_client::encoding::text;
use prometheus_client::registry::Registry;
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use crate::site::Site;

/// A listener that nobody accepts from yet.
#[derive(Debug)]
pub struct Admin(TcpListener);

struct Answers {
    hosts: Hosts,
    site: Arc<Site>,
    registry: Registry,
    pulse: Pulse,
}

impl Admin {
    /// Opens it.
    ///
    /// # Errors
    ///
    /// The address can't be listened on.
    pub fn listen(addr: SocketAddr) -> Result<Self, BindError> {
        let free = listener::check_address_free(addr);
        let socket = free.and_then(|()| listener::listen(addr, BindOptions::default()));
        socket
            .map(Self)
            .map_err(|failed| BindError::new(addr, failed))
    }

    /// Answers until the process ends, on the runtime that this is spawned on.
    /// Requests have to be for an IP address, for localhost, or for one of `hosts`.
    pub async fn serve(self, site: Arc<Site>, pulse: Pulse, hosts: Hosts) {
        let mut registry = Registry::default();
        site.register(&mut registry);
        let answers = Arc::new(Answers {
            hosts,
            site,
            registry,
            pulse,
        });
        let listener = match tokio::net::TcpListener::from_std(self.0) {
            Ok(listener) => listener,
            Err(error) => return tracing::warn!("--admin: epoll_ctl(2): {error}"),
        };
        let places = Arc::new(Semaphore::new(AT_ONCE));
        loop {
            let Ok(place) = Arc::clone(&places).acquire_owned().await else {
                return;
            };
            let Ok((stream, _)) = listener.accept().await else {
                sleep(PAUSE).await;
                continue;
            };
            let answers = Arc::clone(&answers);
            tokio::spawn(async move {
                let service = service_fn(|request| {
                    let answers = &answers;
                    async move { Ok::<_, Infallible>(answers.answer(&request).await) }
                });
                let connection = http1::Builder::new()
                    .timer(TokioTimer::new())
                    .header_read_timeout(IDLE)
                    .serve_connection(TokioIo::new(stream), service);
                // Whoever asked is gone.
                let _ = connection.await;
                drop(place);
            });
        }
    }
}

/// Names that this server may be asked by. A browser that was led here by another name, whose owner has made it lead here
/// (DNS rebinding), would show what we answer to that name's page.
#[derive(Clone, Debug, Default)]
pub struct Hosts(pub Vec<String>);

impl Hosts {
    /// Whether Host and Origin, as far as they are there, are ours.
    fn are_ours(&self, headers: &HeaderMap) -> bool {
        let is_ours = |value: &HeaderValue, prefix| {
            let text = value
                .to_str()
                .ok()
                .and_then(|text| text.strip_prefix(prefix));
            let authority = text.and_then(|text| text.parse::<Authority>().ok());
            authority.is_some_and(|authority| self.contain(authority.host()))
        };
        let mut hosts = headers.get_all(header::HOST).iter();
        let mut origins = headers.get_all(header::ORIGIN).iter();
        hosts.all(|host| is_ours(host, "")) && origins.all(|origin| is_ours(origin, "http://"))
    }

    fn contain(&self, host: &str) -> bool {
        let address = host.trim_start_matches('[').trim_end_matches(']');
        address.parse::<IpAddr>().is_ok()
            || host.eq_ignore_ascii_case("localhost")
            || self.0.iter().any(|ours| host.eq_ignore_ascii_case(ours))
    }
}

impl Answers {
    async fn answer(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        if !self.hosts.are_ours(request.headers()) {
            return plain(StatusCode::MISDIRECTED_REQUEST, NOT_OURS);
        }
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return plain(StatusCode::METHOD_NOT_ALLOWED, "GET, please\n");
        }
        match request.uri().path() {
            "/metrics" => self.metrics(),
            "/healthz" => match timeout(BEAT, self.pulse.beat()).await {
                Ok(()) => plain(StatusCode::OK, "ok\n"),
                Err(_) => plain(StatusCode::SERVICE_UNAVAILABLE, "a worker hangs\n"),
            },
            "/readyz" if self.site.is_draining() => {
                plain(StatusCode::SERVICE_UNAVAILABLE, "draining\n")
            }
            "/readyz" => match self.site.can_ask().await {
                Ok(()) => plain(StatusCode::OK, "ready\n"),
                Err(why) => {
                    let text = format!("the check service can't be asked: {why}\n");
                    with(StatusCode::SERVICE_UNAVAILABLE, TEXT, text)
                }
            },
            _ => plain(StatusCode::NOT_FOUND, "/metrics, /healthz, /readyz\n"),
        }
    }

    fn metrics(&self) -> Response<Full<Bytes>> {
        let mut out = String::new();
        match text::encode(&mut out, &self.registry) {
            Ok(()) => with(StatusCode::OK, OPEN_METRICS, out),
            Err(_) => plain(
                StatusCode::INTERNAL_SERVER_ERROR,
                "metrics can't be written\n",
            ),
        }
    }
}

fn plain(status: StatusCode, text: &'static str) -> Response<Full<Bytes>> {
    with(status, TEXT, text.to_owned())
}

fn with(status: StatusCode, kind: &'static str, text: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(text));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

const NOT_OURS: &str =
    "this host name is not one of this server's; ask by its address, or add --admin-host NAME\n";
const TEXT: &str = "text/plain; charset=utf-8";
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// Connections: scrapers are few.
const AT_ONCE: usize = 32;
const IDLE: Duration = Duration::from_secs(30);
/// A worker that has not come round in so long is stuck.
const BEAT: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(50);
