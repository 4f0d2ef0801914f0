//! WebSocket, from HTTP/1.1 (RFC 6455) and from HTTP/2 (RFC 8441), to HTTP/1.1.
//!
//! Upstream it is always HTTP/1.1, which every WebSocket server speaks, so nobody has to find out first
//! whether an origin does extended CONNECT. What is said after the handshake is carried, not read.

use std::io;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::request::Parts;
use http::{Method, Response, StatusCode, response};
use hyper::ext::Protocol;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf, copy_bidirectional};
use tokio::time::timeout;

use crate::audit::Record;
use crate::http::response_body::Answer;
use crate::http::exchange::Switched;
use crate::request::refusal::Refusal;

/// A client's wish to speak WebSocket.
#[derive(Debug)]
pub(crate) enum Handshake {
    Http1,
    /// On a stream of its own.
    Http2(OnUpgrade),
}

impl Handshake {
    /// Reads it off a request; `None` where there is none. Any other protocol that a client may want to
    /// upgrade to is not offered, as RFC 9110, section 7.8 permits: `h2c` would lead past the check.
    ///
    /// # Errors
    ///
    /// A CONNECT for anything else; a handshake that announces a body, of which nothing would be passed on: its
    /// origin would take the next request on the connection for it.
    pub(crate) fn of(parts: &mut Parts) -> Result<Option<Self>, Refusal> {
        let handshake = Self::wanted(parts)?;
        let has_body = BODY.iter().any(|name| parts.headers.contains_key(name));
        match handshake.is_some() && has_body {
            true => Err(Refusal::bad_request("a WebSocket handshake with a body")),
            false => Ok(handshake),
        }
    }

    fn wanted(parts: &mut Parts) -> Result<Option<Self>, Refusal> {
        if parts.method != Method::CONNECT {
            let wanted = parts.method == Method::GET
                && has_word(&parts.headers, &header::CONNECTION, "upgrade")
                && has_word(&parts.headers, &header::UPGRADE, "websocket");
            return Ok(wanted.then_some(Self::Http1));
        }
        let protocol = parts.extensions.remove::<Protocol>();
        let is_websocket = protocol.is_some_and(|name| name.as_str() == "websocket");
        match parts.extensions.remove::<OnUpgrade>() {
            Some(stream) if is_websocket => Ok(Some(Self::Http2(stream))),
            _ => Err(Refusal::new(
                StatusCode::NOT_IMPLEMENTED,
                "bad_request",
                "CONNECT inside a tunnel",
            )
            .closing()),
        }
    }

    /// Makes a request of it that an HTTP/1.1 origin understands.
    pub(crate) fn write(&self, parts: &mut Parts) {
        if let Self::Http2(_) = self {
            parts.method = Method::GET;
            let headers = &mut parts.headers;
            headers.insert(header::SEC_WEBSOCKET_KEY, key());
            headers.insert(
                header::SEC_WEBSOCKET_VERSION,
                HeaderValue::from_static("13"),
            );
        }
        let headers = &mut parts.headers;
        headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    }

    /// The origin has agreed; the client gets that in its own protocol.
    pub(crate) fn agree(
        self,
        mut parts: response::Parts,
        switch: Switched,
        switched: &mut Option<Switched>,
    ) -> Response<Answer> {
        match self {
            Self::Http1 => {
                let headers = &mut parts.headers;
                headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
                headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
                *switched = Some(switch);
            }
            Self::Http2(stream) => {
                parts.status = StatusCode::OK;
                parts.headers.remove(header::SEC_WEBSOCKET_ACCEPT);
                // The other streams of the connection go on meanwhile.
                tokio::spawn(async move {
                    if let Ok(stream) = stream.await {
                        carry(TokioIo::new(stream), switch).await;
                    }
                });
            }
        }
        Response::from_parts(parts, Answer::ours(bytes::Bytes::new(), None))
    }
}

/// Carries what both sides say until both have finished.
pub(crate) async fn carry<T>(client: T, switched: Switched)
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    let Switched {
        upstream,
        mut record,
        silence,
    } = switched;
    let Ok(upstream) = upstream.await else {
        return record.cut_by_origin();
    };
    match copy(client, TokioIo::new(upstream), &record, silence).await {
        Some(Ok(_)) => record.complete(),
        Some(Err(_)) => {}
        None => record.idle(),
    }
}

/// `None` where nothing has moved for `silence`, or up to twice as long.
async fn copy(
    client: impl AsyncRead + AsyncWrite + Unpin,
    upstream: impl AsyncRead + AsyncWrite + Unpin,
    record: &Record,
    silence: Duration,
) -> Option<io::Result<(u64, u64)>> {
    let mut client = Counted(client, &record.sent.octets);
    let mut upstream = Counted(upstream, &record.received);
    let mut copying = pin!(copy_bidirectional(&mut client, &mut upstream));
    let mut before = record.moved();
    loop {
        match timeout(silence, &mut copying).await {
            Ok(ended) => return Some(ended),
            Err(_) if before == record.moved() => return None,
            Err(_) => before = record.moved(),
        }
    }
}

const BODY: [HeaderName; 2] = [header::CONTENT_LENGTH, header::TRANSFER_ENCODING];

fn has_word(headers: &HeaderMap, name: &HeaderName, word: &str) -> bool {
    let all = headers.get_all(name).iter();
    all.filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|one| one.trim().eq_ignore_ascii_case(word))
}

/// A nonce of 16 octets (RFC 6455, section 4.1). It keeps caches from answering and is no secret.
fn key() -> HeaderValue {
    let half =
        || std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), 0_u8).to_ne_bytes();
    let text = STANDARD.encode([half(), half()].concat());
    HeaderValue::try_from(text).unwrap_or_else(|_| HeaderValue::from_static(""))
}

/// Counts what is read.
struct Counted<'a, T>(T, &'a AtomicU64);

impl<T: AsyncRead + Unpin> AsyncRead for Counted<'_, T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.0).poll_read(cx, buffer))?;
        self.1
            .fetch_add((buffer.filled().len() - before) as u64, Relaxed);
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Counted<'_, T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
