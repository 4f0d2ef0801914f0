//! The parsers of what clients send, without a network: for `fuzz/`. No part of the library's contract.

use std::convert::Infallible;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use http::request::Parts;
use http::{Request, Response};
use http_body_util::{BodyExt, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, ReadBuf};

use crate::host::Host;
use crate::http::framing::FramingMonitor;
use crate::http::framing::watched_stream::{SharedFraming, WatchedStream};
use crate::listener::client_hello::{ClientHelloReader, Opening};

/// The fields of a ClientHello.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HelloFields {
    /// The SNI, if it is a host.
    pub sni: Option<Host>,
    /// Whether HTTP/2 is offered.
    pub http2: bool,
    /// Whether HTTP/1.1 is offered.
    pub http1: bool,
    /// Whether the client can verify a P-256 signature.
    pub ecdsa: bool,
}

/// Classifies the protocol with which a stream of bytes begins: "tls", "http", "unknown", or `None` if more bytes are needed.
#[must_use]
pub fn classify_opening(bytes: &[u8]) -> Option<&'static str> {
    Opening::classify(bytes)
}

/// Parses a ClientHello that comes `step` bytes at a time; `None` if it is incomplete or invalid.
#[must_use]
pub fn parse_client_hello(bytes: &[u8], step: usize) -> Option<HelloFields> {
    let mut reader = ClientHelloReader::default();
    let step = step.max(1);
    for part in 1..=bytes.len().div_ceil(step) {
        let received = bytes.get(..part * step).unwrap_or(bytes);
        if let Some(hello) = reader.feed(received).ok()? {
            return Some(HelloFields {
                sni: hello.sni,
                http2: hello.http2,
                http1: hello.http1,
                ecdsa: hello.support.ecdsa,
            });
        }
    }
    None
}

/// Feeds a stream of bytes, `step` at a time, to a `FramingMonitor`. Returns whether each request is accepted, and whether the
/// whole stream is.
#[must_use]
pub fn check_framing(bytes: &[u8], step: usize) -> (Vec<bool>, bool) {
    let mut framing = FramingMonitor::default();
    let mut accepted = Vec::new();
    for part in bytes.chunks(step.max(1)) {
        let fed = framing.feed(part);
        accepted.extend(framing.take_verdicts().map(|verdict| verdict.is_ok()));
        if fed.is_err() {
            return (accepted, false);
        }
    }
    (accepted, true)
}

/// A request that hyper has parsed.
#[derive(Debug)]
pub struct ParsedRequest {
    /// Its head.
    pub head: Parts,
    /// Its body, if it is complete.
    pub body: Option<Bytes>,
    /// Whether it is served, not refused.
    pub served: bool,
}

/// Parses the requests in a stream of bytes with hyper, monitored as in the proxy. The stream comes `step` bytes at a time, and
/// ends.
#[must_use]
pub fn parse_requests(bytes: &[u8], step: usize) -> Vec<ParsedRequest> {
    let parsed = Arc::new(Mutex::new(Vec::new()));
    let shared = SharedFraming::default();
    let input = Input { bytes, step };
    let io = WatchedStream::new(tokio::io::join(input, tokio::io::sink()), shared.clone());
    let service = service_fn(|request: Request<Incoming>| {
        let served = shared.lock().next_verdict().is_ok();
        let parsed = Arc::clone(&parsed);
        async move {
            let (head, body) = request.into_parts();
            let body = body.collect().await.ok().map(|body| body.to_bytes());
            parsed.lock().push(ParsedRequest { head, body, served });
            Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new()))
        }
    });
    let connection = http1::Builder::new().serve_connection(TokioIo::new(io), service);
    // All input is ready, so only hyper's own yields are pending.
    let mut connection = pin!(connection);
    let mut cx = Context::from_waker(std::task::Waker::noop());
    while connection.as_mut().poll(&mut cx).is_pending() {}
    std::mem::take(&mut *parsed.lock())
}

struct Input<'a> {
    bytes: &'a [u8],
    step: usize,
}

impl AsyncRead for Input<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let len = self
            .step
            .max(1)
            .min(buffer.remaining())
            .min(self.bytes.len());
        let (read, rest) = self.bytes.split_at(len);
        buffer.put_slice(read);
        self.bytes = rest;
        Poll::Ready(Ok(()))
    }
}
