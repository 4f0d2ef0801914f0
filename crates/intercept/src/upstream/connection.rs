//! A connection to an origin, ready for requests.

use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Weak};

use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_rustls::client::TlsStream;

use super::connection_permit::ConnectionPermit;
use super::request_body::RequestBody;
use crate::stream::corked::CorkedStream;
use crate::stream::origin_socket::OriginSocket;

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
    pub(crate) addr: SocketAddr,
    /// The protocol version of TLS; `None` without TLS.
    pub(crate) tls: Option<&'static str>,
    pub(crate) opened: Instant,
    /// Whether requests have to be in absolute form, because an upstream proxy is at the other end.
    pub(crate) absolute_form: bool,
    /// Whether the connection's TLS has ended without close_notify.
    pub(crate) lacks_close_notify: Arc<AtomicBool>,
    /// Counts the connection against the connection cap, and against its client's share.
    pub(super) permit: ConnectionPermit,
}

impl ConnectionInfo {
    pub(super) fn new(
        addr: SocketAddr,
        tls: Option<&'static str>,
        absolute_form: bool,
        permit: ConnectionPermit,
    ) -> Arc<Self> {
        Arc::new(Self {
            addr,
            tls,
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
    pub(super) fn spawn(driver: Driver, info: Arc<ConnectionInfo>) -> Self {
        let driver = Arc::new(Mutex::new(driver));
        let limit = Self(Arc::downgrade(&driver));
        tokio::spawn(std::future::poll_fn(move |cx| {
            // The connection counts against the cap until its driver ends.
            let _counted = &info;
            let mut driver = driver.lock();
            std::pin::Pin::new(&mut *driver).poll(cx).map(drop)
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
