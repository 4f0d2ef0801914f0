//! The HTTP client for check services and collectors of spans.

pub(crate) mod connector;
pub(crate) mod error;
pub(crate) mod tls;

use std::time::Duration;

use bytes::Bytes;
use http::{Request, response};
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper_util::client::legacy;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use parking_lot::Mutex;
use tokio::time::timeout;
use tonic::body::Body;

use connector::{Connector, Endpoint};
use error::HttpClientError;

/// A connection pool, which tonic's calls use too: connecting, detecting a dead connection and reconnecting are
/// implemented once.
pub(crate) type Pool = legacy::Client<Connector, Body>;

/// The client of one server. Its connections are tasks of the runtime that first uses them.
#[derive(Debug)]
pub(crate) struct HttpClient {
    version: HttpVersion,
    connector: Connector,
    /// The current pool, and its generation.
    current: Mutex<(u64, Pool)>,
}

/// The HTTP version over which a server's protocol runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HttpVersion {
    Http1,
    /// With prior knowledge (RFC 9113 §3.3).
    Http2,
}

impl HttpVersion {
    /// Its name in a TLS handshake.
    fn alpn(self) -> &'static [u8] {
        match self {
            Self::Http1 => b"http/1.1",
            Self::Http2 => b"h2",
        }
    }
}

/// Identifies the pool that a request used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Generation(u64);

impl HttpClient {
    pub(crate) fn new(
        endpoint: &Endpoint,
        version: HttpVersion,
        connect_timeout: Duration,
    ) -> Self {
        let connector = Connector::new(endpoint, version.alpn(), connect_timeout);
        Self {
            version,
            current: Mutex::new((0, pool(version, connector.clone()))),
            connector,
        }
    }

    /// The current pool.
    pub(crate) fn pool(&self) -> (Generation, Pool) {
        let (generation, pool) = &*self.current.lock();
        (Generation(*generation), pool.clone())
    }

    /// Abandons the pool of connections on which a request timed out; requests in flight on it go on.
    ///
    /// A peer that has vanished can't be told from one that is slow. A timeout closes an HTTP/1.1 connection, but only
    /// the request's stream on an HTTP/2 connection, which further requests would still use.
    pub(crate) fn abandon(&self, Generation(timed_out): Generation) {
        let mut current = self.current.lock();
        if self.version == HttpVersion::Http2 && current.0 == timed_out {
            *current = (timed_out + 1, pool(self.version, self.connector.clone()));
        }
    }

    /// Sends one request, and receives its complete response. Only connecting has a timeout.
    pub(crate) async fn exchange(
        &self,
        request: &Request<Bytes>,
    ) -> Result<(response::Parts, Bytes), HttpClientError> {
        let (_, pool) = self.pool();
        match exchange_once(&pool, request).await {
            // One retry: the server may have closed an idle connection while the request was written to it.
            Err(HttpClientError::Broken(_)) => exchange_once(&pool, request).await,
            result => result,
        }
    }
}

/// Probes whether a server accepts connections, with a TLS handshake if its URI is `https`.
pub(crate) async fn probe(
    endpoint: &Endpoint,
    version: HttpVersion,
    limit: Duration,
) -> Result<(), HttpClientError> {
    let connector = Connector::new(endpoint, version.alpn(), limit);
    match timeout(limit, connector.connect()).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(HttpClientError::connect(&error)),
        Err(_) => Err(HttpClientError::Timeout(limit)),
    }
}

async fn exchange_once(
    pool: &Pool,
    request: &Request<Bytes>,
) -> Result<(response::Parts, Bytes), HttpClientError> {
    let request = request.clone().map(|body| Body::new(Full::new(body)));
    let (head, body) = pool
        .request(request)
        .await
        .map_err(|error| HttpClientError::new(&error))?
        .into_parts();
    match Limited::new(body, MAX_RESPONSE).collect().await {
        Ok(body) => Ok((head, body.to_bytes())),
        Err(error) if error.is::<LengthLimitError>() => Err(HttpClientError::TooLong(MAX_RESPONSE)),
        Err(error) => Err(HttpClientError::new(&*error)),
    }
}

fn pool(version: HttpVersion, connector: Connector) -> Pool {
    legacy::Client::builder(TokioExecutor::new())
        .timer(TokioTimer::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(IDLE_TIMEOUT)
        .pool_max_idle_per_host(MAX_IDLE)
        .http1_max_buf_size(MAX_RESPONSE)
        .http2_only(version == HttpVersion::Http2)
        .http2_max_header_list_size(MAX_HTTP2_HEAD)
        .http2_initial_stream_window_size(MAX_HTTP2_HEAD * 4)
        .http2_initial_connection_window_size(CONNECTION_WINDOW)
        .build(connector)
}

/// Maximum bytes of a response's body, and of an HTTP/1.1 head. Denial pages fit; anything longer is an error, and is
/// not buffered beyond this limit.
pub(crate) const MAX_RESPONSE: usize = 64 << 10;
/// Bytes of an HTTP/2 head, as SETTINGS_MAX_HEADER_LIST_SIZE counts them.
const MAX_HTTP2_HEAD: u32 = 16 << 10;
/// Bytes of responses that one HTTP/2 connection may receive before they are read.
const CONNECTION_WINDOW: u32 = 1 << 20;
/// How long an idle connection stays in the pool: shorter than servers keep it (60 s and more), so that mostly the proxy closes
/// it.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// Idle connections of a pool.
const MAX_IDLE: usize = 32;
