//! One worker's connections to the check service.

use std::error::Error;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Uri, response};
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tonic::body::Body;

use super::verdict::{AuthzError, printable};

/// A connection pool, which tonic's calls use too: connecting, detecting a dead connection and reconnecting are
/// implemented once.
pub(crate) type Pool = legacy::Client<HttpConnector, Body>;

/// The transport of one worker: its connections are tasks of the runtime that first uses them.
#[derive(Debug)]
pub(crate) struct Transport {
    version: HttpVersion,
    connect_timeout: Duration,
    current: Mutex<(u64, Pool)>,
}

/// The HTTP version below the service's protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HttpVersion {
    Http1,
    /// With prior knowledge (RFC 9113 §3.3).
    Http2,
}

/// Identifies the pool that a request used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Generation(u64);

impl Transport {
    pub(crate) fn new(version: HttpVersion, connect_timeout: Duration) -> Self {
        Self {
            version,
            connect_timeout,
            current: Mutex::new((0, pool(version, connect_timeout))),
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
            *current = (timed_out + 1, pool(self.version, self.connect_timeout));
        }
    }

    /// Sends one request, and receives its complete response.
    ///
    /// # Errors
    ///
    /// [`AuthzError::Connect`], [`AuthzError::Broken`], [`AuthzError::TooLong`].
    pub(crate) async fn exchange(
        &self,
        request: &Request<Bytes>,
    ) -> Result<(response::Parts, Bytes), AuthzError> {
        let (_, pool) = self.pool();
        match once(&pool, request).await {
            // The service may have closed an idle connection as this was written to it: one retry.
            Err(AuthzError::Broken(_)) => once(&pool, request).await,
            result => result,
        }
    }
}

/// Probes whether the service accepts connections.
///
/// # Errors
///
/// [`AuthzError::Connect`], [`AuthzError::Timeout`].
pub(crate) async fn reach(service: &Uri, limit: Duration) -> Result<(), AuthzError> {
    let host = service.host().unwrap_or_default();
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let connecting = TcpStream::connect((host, service.port_u16().unwrap_or(80)));
    match timeout(limit, connecting).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(AuthzError::Connect(printable(&error.to_string()))),
        Err(_) => Err(AuthzError::Timeout(limit)),
    }
}

async fn once(
    pool: &Pool,
    request: &Request<Bytes>,
) -> Result<(response::Parts, Bytes), AuthzError> {
    let request = request.clone().map(|body| Body::new(Full::new(body)));
    let answer = pool
        .request(request)
        .await
        .map_err(|error| error_from(&error))?;
    let (head, body) = answer.into_parts();
    let body = Limited::new(body, MAX_RESPONSE).collect().await;
    let body = body.map_err(|error| match error.is::<LengthLimitError>() {
        true => AuthzError::TooLong(MAX_RESPONSE),
        false => error_from(&*error),
    })?;
    Ok((head, body.to_bytes()))
}

fn pool(version: HttpVersion, connect_timeout: Duration) -> Pool {
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    connector.set_connect_timeout(Some(connect_timeout));
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

/// The error for an error of the HTTP client.
pub(crate) fn error_from(error: &(dyn Error + 'static)) -> AuthzError {
    let mut innermost = error;
    let mut is_connect = false;
    loop {
        let of_client = innermost.downcast_ref::<legacy::Error>();
        is_connect |= of_client.is_some_and(legacy::Error::is_connect);
        match innermost.source() {
            Some(source) => innermost = source,
            None => break,
        }
    }
    let why = printable(&innermost.to_string());
    match is_connect {
        true => AuthzError::Connect(why),
        false => AuthzError::Broken(why),
    }
}

/// Maximum bytes of a response's body, and of an HTTP/1.1 head. Denial pages fit; anything longer is an error, and is
/// not buffered beyond this limit.
pub(crate) const MAX_RESPONSE: usize = 64 << 10;
/// Bytes of an HTTP/2 head, as SETTINGS_MAX_HEADER_LIST_SIZE counts them.
const MAX_HTTP2_HEAD: u32 = 16 << 10;
/// Bytes that one worker's requests may receive at once.
const CONNECTION_WINDOW: u32 = 1 << 20;
/// How long an idle connection stays in the pool. Services keep theirs open for longer (60 s and more), so that mostly
/// the proxy closes it.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// Idle connections of a worker.
const MAX_IDLE: usize = 32;
