//! A connection to an origin, ready for requests.

pub(super) mod origin_socket;

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Weak};
use std::time::Duration;

use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep};
use tokio_rustls::client::TlsStream;

use super::connection_permit::ConnectionPermit;
use super::error::UpstreamError;
use super::request_body::RequestBody;
use crate::audit::UpstreamFields;
use crate::stream::corked::CorkedStream;
use origin_socket::OriginSocket;

/// A connection to an origin.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(super) sender: Sender,
    pub(super) info: Arc<ConnectionInfo>,
}

#[derive(Debug)]
pub(super) enum Sender {
    Http1(http1::SendRequest<RequestBody>),
    Http2(http2::SendRequest<RequestBody>, StreamLimit),
}

/// The properties of a connection.
#[derive(Debug)]
pub(crate) struct ConnectionInfo {
    pub(crate) fields: UpstreamFields,
    pub(crate) opened: Instant,
    /// Whether requests have to be in absolute form, because an upstream proxy is at the other end.
    pub(crate) absolute_form: bool,
    /// Whether the connection's TLS has ended without close_notify.
    pub(crate) lacks_close_notify: Arc<AtomicBool>,
    /// Counts the connection against the connection cap, and against its client's share.
    pub(super) permit: Arc<ConnectionPermit>,
}

impl ConnectionInfo {
    pub(super) fn new(
        fields: UpstreamFields,
        absolute_form: bool,
        permit: Arc<ConnectionPermit>,
    ) -> Arc<Self> {
        Arc::new(Self {
            fields,
            opened: Instant::now(),
            absolute_form,
            lacks_close_notify: Arc::default(),
            permit,
        })
    }
}

/// A tunnel to an origin, which counts against the connection cap until `info` is dropped.
#[derive(Debug)]
pub struct OpenTunnel {
    pub(crate) socket: TcpStream,
    pub(crate) info: Arc<ConnectionInfo>,
}

impl Connection {
    /// Starts HTTP/1.
    pub(super) async fn handshake_http1<T>(
        io: T,
        info: Arc<ConnectionInfo>,
    ) -> Result<Self, UpstreamError>
    where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (sender, driver) = http1::Builder::new()
            .max_header_size(MAX_RESPONSE_HEAD)
            .max_headers(MAX_RESPONSE_HEADERS)
            .preserve_header_case(true)
            .handshake(TokioIo::new(io))
            .await
            .map_err(|error| UpstreamError::BadResponse(error.to_string()))?;
        // The driver's errors reach the request that waits for a response.
        tokio::spawn(driver.with_upgrades());
        Ok(Self {
            sender: Sender::Http1(sender),
            info,
        })
    }

    /// Starts HTTP/2, which is always inside TLS.
    pub(super) async fn handshake_http2(
        io: TlsConnection,
        info: Arc<ConnectionInfo>,
    ) -> Result<Self, UpstreamError> {
        let (sender, driver) = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .keep_alive_interval(PING_INTERVAL)
            .max_header_list_size(MAX_RESPONSE_HEAD as u32)
            .handshake(TokioIo::new(io))
            .await
            .map_err(|error| UpstreamError::BadResponse(error.to_string()))?;
        Ok(Self {
            sender: Sender::Http2(sender, StreamLimit::spawn(driver)),
            info,
        })
    }

    /// Closes the connection, even if what it has written has not left after [`CLOSE_TIMEOUT`].
    pub(super) fn close(self) {
        let permit = Arc::downgrade(&self.info.permit);
        // Without a runtime everything ends anyway.
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(async move {
                sleep(CLOSE_TIMEOUT).await;
                if let Some(permit) = permit.upgrade() {
                    permit.revoke();
                }
            });
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        match &self.sender {
            Sender::Http1(sender) => sender.is_closed(),
            Sender::Http2(sender, _) => sender.is_closed(),
        }
    }

    pub(super) fn is_ready(&self) -> bool {
        match &self.sender {
            Sender::Http1(sender) => sender.is_ready(),
            Sender::Http2(sender, limit) => sender.is_ready() && limit.max_streams() > 0,
        }
    }

    pub(super) fn is_http2(&self) -> bool {
        matches!(self.sender, Sender::Http2(..))
    }
}

pub(super) type TlsConnection = TlsStream<CorkedStream<OriginSocket>>;

/// The task of an HTTP/2 connection, which is always inside TLS.
pub(super) type Driver = http2::Connection<TokioIo<TlsConnection>, RequestBody, TokioExecutor>;

/// The maximum number of concurrent streams (SETTINGS_MAX_CONCURRENT_STREAMS), which only the connection's driver knows.
#[derive(Clone, Debug)]
pub(super) struct StreamLimit(Weak<Mutex<Driver>>);

impl StreamLimit {
    /// Spawns the driver. Its errors reach the requests that wait for a response.
    pub(super) fn spawn(driver: Driver) -> Self {
        let driver = Arc::new(Mutex::new(driver));
        let limit = Self(Arc::downgrade(&driver));
        tokio::spawn(poll_fn(move |cx| {
            let mut driver = driver.lock();
            Pin::new(&mut *driver).poll(cx).map(drop)
        }));
        limit
    }

    /// 100 until the origin has sent its settings, 0 once the connection is closed.
    pub(super) fn max_streams(&self) -> usize {
        self.0.upgrade().map_or(0, |driver| {
            let driver = driver.lock();
            driver.current_max_send_streams()
        })
    }
}

/// How long an idle connection may take to close.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// The maximum number of bytes of a response's head.
const MAX_RESPONSE_HEAD: usize = 128 * 1024;
/// The maximum number of header lines of a response: more than hyper's 100, for cookies and policies of large sites. For each
/// response hyper initializes 64 bytes per header line.
const MAX_RESPONSE_HEADERS: usize = 250;
/// The time between HTTP/2 PINGs, so that a dead connection is detected before many requests wait for it.
const PING_INTERVAL: Duration = Duration::from_secs(20);
