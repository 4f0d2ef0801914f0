//! WebSocket, from HTTP/1.1 (RFC 6455) and from HTTP/2 (RFC 8441), to HTTP/1.1.
//!
//! Upstream it is always HTTP/1.1, which every WebSocket server speaks, so there is no need to find out first whether an
//! origin supports extended CONNECT. What follows the handshake is relayed, not parsed.

use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::Duration;

use aws_lc_rs::digest;
use data_encoding::BASE64;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::request::Parts;
use http::{Method, Response, StatusCode, response};
use hyper::ext::Protocol;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf, copy_bidirectional};
use tokio::time::timeout;

use super::hop_by_hop::has_item;
use super::in_flight::InFlightRecord;
use super::response_body::ResponseBody;
use crate::audit::{AuditRecord, ExchangeEnd};
use crate::request::refusal::Refusal;
use crate::upstream::ConnectionInfo;

/// A switched protocol: what is left to be relayed once the client has the response to its handshake.
pub(crate) struct Switched {
    /// The origin's side.
    pub(crate) upgrade: OnUpgrade,
    /// The connection to the origin, which counts against the connection cap until the relay ends.
    pub(crate) connection: Arc<ConnectionInfo>,
    pub(crate) record: Box<InFlightRecord>,
    /// How long no byte may move in either direction.
    pub(crate) idle_timeout: Duration,
}

/// A client's WebSocket handshake.
#[derive(Debug)]
pub(crate) enum Handshake {
    Http1,
    /// On a stream of its own, where the client sends no key (RFC 8441, section 5).
    Http2 {
        stream: OnUpgrade,
        key: HeaderValue,
    },
}

impl Handshake {
    /// Reads the handshake in a request; `None` where there is none. An upgrade to any other protocol is ignored, as
    /// RFC 9110, section 7.8 permits: `h2c` would lead past the check.
    ///
    /// # Errors
    ///
    /// A CONNECT for anything else; a handshake that announces a body. The body would not be forwarded, so the origin
    /// would read the next request on the connection as that body.
    pub(crate) fn read(parts: &mut Parts) -> Result<Option<Self>, Refusal> {
        let handshake = Self::find(parts)?;
        let has_body = BODY_HEADERS
            .iter()
            .any(|name| parts.headers.contains_key(name));
        if handshake.is_some() && has_body {
            return Err(Refusal::bad_request("a WebSocket handshake with a body"));
        }
        Ok(handshake)
    }

    fn find(parts: &mut Parts) -> Result<Option<Self>, Refusal> {
        if parts.method != Method::CONNECT {
            let is_websocket = parts.method == Method::GET
                && has_item(&parts.headers, &header::CONNECTION, "upgrade")
                && has_item(&parts.headers, &header::UPGRADE, "websocket");
            return Ok(is_websocket.then_some(Self::Http1));
        }
        let protocol = parts.extensions.remove::<Protocol>();
        let is_websocket = protocol.is_some_and(|name| name.as_str() == "websocket");
        match parts.extensions.remove::<OnUpgrade>() {
            Some(stream) if is_websocket => {
                let key = new_key();
                Ok(Some(Self::Http2 { stream, key }))
            }
            _ => Err(Refusal::new(
                StatusCode::NOT_IMPLEMENTED,
                "bad_request",
                "CONNECT inside a tunnel",
            )
            .with_close()),
        }
    }

    /// Writes the handshake into the request in the form of HTTP/1.1, for the origin.
    pub(crate) fn write(&self, parts: &mut Parts) {
        if let Self::Http2 { key, .. } = self {
            parts.method = Method::GET;
            let headers = &mut parts.headers;
            headers.insert(header::SEC_WEBSOCKET_KEY, key.clone());
            headers.insert(
                header::SEC_WEBSOCKET_VERSION,
                HeaderValue::from_static("13"),
            );
        }
        let headers = &mut parts.headers;
        headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    }

    /// Whether the origin has read the key of this handshake, and so understands WebSocket (RFC 6455, section 4.1). A client
    /// that speaks HTTP/1.1 has made the key, and verifies this itself.
    pub(crate) fn is_confirmed(&self, headers: &HeaderMap) -> bool {
        let Self::Http2 { key, .. } = self else {
            return true;
        };
        let accept = headers.get(header::SEC_WEBSOCKET_ACCEPT);
        accept.is_some_and(|accept| accept.as_bytes() == accept_for(key).as_bytes())
    }

    /// Passes the origin's acceptance on in the client's protocol. Over HTTP/2 it starts the relay; over HTTP/1 it sets
    /// `switched` for the caller, which has to relay.
    pub(crate) fn accept(
        self,
        mut parts: response::Parts,
        switch: Switched,
        switched: &mut Option<Switched>,
    ) -> Response<ResponseBody> {
        match self {
            Self::Http1 => {
                let headers = &mut parts.headers;
                headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
                headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
                *switched = Some(switch);
            }
            Self::Http2 { stream, .. } => {
                parts.status = StatusCode::OK;
                parts.headers.remove(header::SEC_WEBSOCKET_ACCEPT);
                // The connection's other streams go on meanwhile.
                tokio::spawn(async move {
                    if let Ok(stream) = stream.await {
                        relay(TokioIo::new(stream), switch).await;
                    }
                });
            }
        }
        Response::from_parts(parts, ResponseBody::from_proxy(bytes::Bytes::new(), None))
    }
}

/// Relays bytes in both directions until both sides have finished.
pub(crate) async fn relay<T>(client: T, switched: Switched)
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    let Switched {
        upgrade,
        connection: _counted,
        mut record,
        idle_timeout,
    } = switched;
    record.end = match upgrade.await {
        Ok(upstream) => {
            copy_until_idle(client, TokioIo::new(upstream), &record, idle_timeout).await
        }
        Err(_) => ExchangeEnd::CutByOrigin,
    };
}

/// Copies in both directions until both sides have finished, or nothing has moved for one to two idle timeouts.
async fn copy_until_idle(
    client: impl AsyncRead + AsyncWrite + Unpin,
    upstream: impl AsyncRead + AsyncWrite + Unpin,
    record: &AuditRecord,
    idle_timeout: Duration,
) -> ExchangeEnd {
    let origin_failed = AtomicBool::new(false);
    let mut client = Counted {
        stream: client,
        read: &record.to_upstream.bytes,
        failed: None,
    };
    let mut upstream = Counted {
        stream: upstream,
        read: &record.to_downstream,
        failed: Some(&origin_failed),
    };
    let mut copying = pin!(copy_bidirectional(&mut client, &mut upstream));
    let mut before = record.bytes_moved();
    loop {
        match timeout(idle_timeout, &mut copying).await {
            Ok(Ok(_)) => return ExchangeEnd::Complete,
            Ok(Err(_)) if origin_failed.load(Relaxed) => return ExchangeEnd::CutByOrigin,
            Ok(Err(_)) => return ExchangeEnd::Cut,
            Err(_) if before == record.bytes_moved() => return ExchangeEnd::Idle,
            Err(_) => before = record.bytes_moved(),
        }
    }
}

const BODY_HEADERS: [HeaderName; 2] = [header::CONTENT_LENGTH, header::TRANSFER_ENCODING];

/// A nonce of 16 bytes (RFC 6455, section 4.1). It keeps caches from answering and is no secret.
fn new_key() -> HeaderValue {
    let half =
        || std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), 0_u8).to_ne_bytes();
    let text = BASE64.encode(&[half(), half()].concat());
    HeaderValue::try_from(text).unwrap_or_else(|_| HeaderValue::from_static(""))
}

/// The Sec-WebSocket-Accept that answers a key (RFC 6455, section 4.2.2). SHA-1 proves only that the
/// server has read the key.
fn accept_for(key: &HeaderValue) -> String {
    let mut hash = digest::Context::new(&digest::SHA1_FOR_LEGACY_USE_ONLY);
    hash.update(key.as_bytes());
    hash.update(b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11");
    BASE64.encode(hash.finish().as_ref())
}

/// Counts the bytes that are read from a stream, and notes in `failed` that reading or writing has failed.
struct Counted<'a, T> {
    stream: T,
    read: &'a AtomicU64,
    failed: Option<&'a AtomicBool>,
}

impl<T> Counted<'_, T> {
    fn note_failure<R>(&self, result: Poll<io::Result<R>>) -> Poll<io::Result<R>> {
        if let (Poll::Ready(Err(_)), Some(failed)) = (&result, self.failed) {
            failed.store(true, Relaxed);
        }
        result
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Counted<'_, T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let result = Pin::new(&mut self.stream).poll_read(cx, buffer);
        let count = buffer.filled().len() - before;
        self.read.fetch_add(count as u64, Relaxed);
        self.note_failure(result)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Counted<'_, T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.note_failure(result)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.stream).poll_flush(cx);
        self.note_failure(result)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.note_failure(result)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accept_matches_the_example_of_the_rfc() {
        // RFC 6455, section 1.3.
        let key = HeaderValue::from_static("dGhlIHNhbXBsZSBub25jZQ==");
        assert_eq!(accept_for(&key), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }
}
