//! One worker's connections to the service, and how one question travels.

use std::error::Error;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Uri, response};
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tonic::body::Body;

use super::verdict::{Failure, printable};

/// A pool, which also tonic's calls go through: there is one way to connect, to find a connection dead and to
/// connect again.
pub(crate) type Pool = legacy::Client<HttpConnector, Body>;

/// Belongs to the worker it is made for: its connections are tasks of the runtime that first uses them.
#[derive(Debug)]
pub(crate) struct Transport {
    version: Version,
    connect_timeout: Duration,
    current: Mutex<(u64, Pool)>,
}

/// What the service speaks below its own protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    Http1,
    /// With prior knowledge (RFC 9113 §3.3).
    Http2,
}

/// Names the connections that a question went to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Generation(u64);

impl Transport {
    pub(crate) fn new(version: Version, connect_timeout: Duration) -> Self {
        Self {
            version,
            connect_timeout,
            current: Mutex::new((0, pool(version, connect_timeout))),
        }
    }

    /// What to ask through, now.
    pub(crate) fn pool(&self) -> (Generation, Pool) {
        let current = self.current.lock();
        let (generation, pool) = &*current.unwrap_or_else(PoisonError::into_inner);
        (Generation(*generation), pool.clone())
    }

    /// Asks no more through connections on which there was no answer in time.
    ///
    /// A peer that has vanished without a word looks like one that thinks; HTTP/1.1 gives such a connection up
    /// by itself, of an HTTP/2 connection only the stream ends. Questions that are open on it stay.
    pub(crate) fn give_up(&self, Generation(silent): Generation) {
        let current = self.current.lock();
        let mut current = current.unwrap_or_else(PoisonError::into_inner);
        if self.version == Version::Http2 && current.0 == silent {
            *current = (silent + 1, pool(self.version, self.connect_timeout));
        }
    }

    /// One request and its whole answer.
    ///
    /// # Errors
    ///
    /// [`Failure::Connect`], [`Failure::Broken`], [`Failure::TooLong`].
    pub(crate) async fn exchange(
        &self,
        request: &Request<Bytes>,
    ) -> Result<(response::Parts, Bytes), Failure> {
        let (_, pool) = self.pool();
        match once(&pool, request).await {
            // A connection that was kept open may have been closed as this was written to it: once more.
            Err(Failure::Broken(_)) => once(&pool, request).await,
            result => result,
        }
    }
}

/// Whether somebody accepts connections where a service should be.
///
/// # Errors
///
/// [`Failure::Connect`], [`Failure::Timeout`].
pub(crate) async fn reach(service: &Uri, limit: Duration) -> Result<(), Failure> {
    let host = service.host().unwrap_or_default();
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let connecting = TcpStream::connect((host, service.port_u16().unwrap_or(80)));
    match timeout(limit, connecting).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(Failure::Connect(printable(&error.to_string()))),
        Err(_) => Err(Failure::Timeout(limit)),
    }
}

async fn once(pool: &Pool, request: &Request<Bytes>) -> Result<(response::Parts, Bytes), Failure> {
    let request = request.clone().map(|body| Body::new(Full::new(body)));
    let answer = pool
        .request(request)
        .await
        .map_err(|error| failure(&error))?;
    let (head, body) = answer.into_parts();
    let body = Limited::new(body, MOST_OF_AN_ANSWER).collect().await;
    let body = body.map_err(|error| match error.is::<LengthLimitError>() {
        true => Failure::TooLong(MOST_OF_AN_ANSWER),
        false => failure(&*error),
    })?;
    Ok((head, body.to_bytes()))
}

fn pool(version: Version, connect_timeout: Duration) -> Pool {
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    connector.set_connect_timeout(Some(connect_timeout));
    legacy::Client::builder(TokioExecutor::new())
        .timer(TokioTimer::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(IDLE)
        .pool_max_idle_per_host(MOST_IDLE)
        .http1_max_buf_size(MOST_OF_AN_ANSWER)
        .http2_only(version == Version::Http2)
        .http2_max_header_list_size(MOST_OF_A_HEAD)
        .http2_initial_stream_window_size(MOST_OF_A_HEAD * 4)
        .http2_initial_connection_window_size(CONNECTION_WINDOW)
        .build(connector)
}

/// What an error of HTTP means.
pub(crate) fn failure(error: &(dyn Error + 'static)) -> Failure {
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
        true => Failure::Connect(why),
        false => Failure::Broken(why),
    }
}

/// Octets, of a body and of an HTTP/1.1 head alike. Denial pages fit; what doesn't costs no memory.
pub(crate) const MOST_OF_AN_ANSWER: usize = 64 << 10;
/// Octets of an HTTP/2 head, as SETTINGS_MAX_HEADER_LIST_SIZE counts them.
const MOST_OF_A_HEAD: u32 = 16 << 10;
/// What one worker's questions may receive at once.
const CONNECTION_WINDOW: u32 = 1 << 20;
/// Shorter than services keep a connection open (60 s and more), so that it is mostly we who close it.
const IDLE: Duration = Duration::from_secs(30);
/// Connections of a worker that wait for another question.
const MOST_IDLE: usize = 32;
