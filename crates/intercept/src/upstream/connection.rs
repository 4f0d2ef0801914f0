//! A connection to an origin, ready for requests.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use super::connection_cap::Place;
use crate::http::response_body::Outgoing;
use crate::stream::corked::Corked;

/// A connection to an origin.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(super) sender: Sender,
    pub(super) about: Arc<About>,
}

#[derive(Debug)]
pub(super) enum Sender {
    Http1(http1::SendRequest<Outgoing>),
    Http2(http2::SendRequest<Outgoing>, Limit),
}

/// What the audit line tells of a connection.
#[derive(Debug)]
pub(crate) struct About {
    pub(crate) addr: SocketAddr,
    /// The protocol version, where it is TLS.
    pub(crate) tls: Option<&'static str>,
    /// Whether requests have to be in absolute form, because an upstream proxy is at the other end.
    pub(crate) absolute_form: bool,
    /// Among the connections that there may be.
    pub(crate) _place: Place,
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
            Sender::Http2(sender, limit) => sender.is_ready() && limit.streams() > 0,
        }
    }

    pub(super) fn is_http2(&self) -> bool {
        matches!(self.sender, Sender::Http2(..))
    }
}

pub(super) type Stream = TlsStream<Corked<TcpStream>>;

/// HTTP/2 is only ever spoken inside TLS.
pub(super) type Driver = http2::Connection<TokioIo<Stream>, Outgoing, TokioExecutor>;

/// How many streams the origin allows at a time (SETTINGS_MAX_CONCURRENT_STREAMS). Only what drives the connection
/// knows.
#[derive(Clone, Debug)]
pub(super) struct Limit(Weak<Mutex<Driver>>);

impl Limit {
    /// Runs the connection. Its errors reach whoever waits for an answer.
    pub(super) fn drive(driver: Driver, about: Arc<About>) -> Self {
        let driver = Arc::new(Mutex::new(driver));
        let limit = Self(Arc::downgrade(&driver));
        tokio::spawn(std::future::poll_fn(move |cx| {
            let _has_its_place = &about;
            let mut driver = driver.lock().unwrap_or_else(PoisonError::into_inner);
            std::pin::Pin::new(&mut *driver).poll(cx).map(drop)
        }));
        limit
    }

    /// 100 until the origin has said something, none once the connection is over.
    pub(super) fn streams(&self) -> usize {
        self.0.upgrade().map_or(0, |driver| {
            let driver = driver.lock().unwrap_or_else(PoisonError::into_inner);
            driver.current_max_send_streams()
        })
    }
}
