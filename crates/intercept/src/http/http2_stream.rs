//! The byte stream of an HTTP/2 client, watched below h2 for two things that would leave no audit line: requests that h2
//! refuses by itself, and header lists that would take much more memory than they have bytes ([`FieldCounter`]).
//!
//! If h2 finds a request malformed, it resets the stream with PROTOCOL_ERROR. Mostly this is a request with a byte in its
//! `:path` that a URI can't have, such as curl sends for a query in PromQL. Over HTTP/1.1 the proxy percent-encodes such bytes.
//! So the reset is rewritten to HTTP_1_1_REQUIRED (RFC 9113, section 7), whereupon clients repeat the request over HTTP/1.1,
//! where it is forwarded or gets an answer with the reason. If frames have followed the request's head, the request may have
//! been forwarded and must not be repeated: its reset stays.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::framing::FramingError;
use super::framing::field_counter::FieldCounter;
use super::framing::frame_header::{FrameHeader, FrameHeaderReader, RST_STREAM};
use crate::stream::delegate_polls;

/// The server's side of an HTTP/2 connection. Rewrites resets with PROTOCOL_ERROR to HTTP_1_1_REQUIRED, and fails at a header
/// list with too many fields.
#[derive(Debug)]
pub(crate) struct Http2Stream<T, F> {
    io: T,
    received: FieldCounter,
    written: FrameCursor,
    /// Called with the reason of each refusal.
    on_refusal: F,
}

/// The position in a stream of frames (RFC 9113, section 4.1).
#[derive(Clone, Copy, Debug, Default)]
struct FrameCursor {
    header: FrameHeaderReader,
    /// The frame whose payload goes by.
    frame: Option<FrameHeader>,
    payload_left: usize,
    /// The bytes of an error code so far.
    code: u32,
    /// Whether the error code of this reset was already compared.
    is_compared: bool,
}

/// An RST_STREAM with PROTOCOL_ERROR in what is to be written.
struct Reset {
    /// The offset of its last byte.
    at: usize,
    stream: u32,
}

impl<T, F> Http2Stream<T, F> {
    pub(crate) fn new(io: T, on_refusal: F) -> Self {
        Self {
            io,
            received: FieldCounter::default(),
            written: FrameCursor::default(),
            on_refusal,
        }
    }
}

impl FrameCursor {
    /// Finds the first reset in what is to be written.
    fn find_reset(mut self, parts: &[IoSlice<'_>]) -> Option<Reset> {
        let mut end = 0;
        parts.iter().find_map(|part| {
            let mut rest = &**part;
            let stream = self.advance_to_reset(&mut rest);
            end += part.len();
            stream.map(|stream| Reset {
                at: end - rest.len(),
                stream,
            })
        })
    }

    /// Moves past the first `written` bytes.
    fn advance(&mut self, parts: &[IoSlice<'_>], mut written: usize) {
        for part in parts {
            let mut part = part.get(..written.min(part.len())).unwrap_or_default();
            written -= part.len();
            while self.advance_to_reset(&mut part).is_some() {}
        }
    }

    /// Takes the bytes before the last byte of the next RST_STREAM with PROTOCOL_ERROR, and returns its stream. Takes all
    /// bytes, and returns `None`, if there is no such reset.
    fn advance_to_reset(&mut self, bytes: &mut &[u8]) -> Option<u32> {
        while let Some(byte) = bytes.first() {
            let Some(frame) = self.frame else {
                self.frame = self.header.take(bytes);
                self.payload_left = self.frame.map_or(0, |frame| frame.len);
                self.end_payload();
                continue;
            };
            let is_reset = frame.kind == RST_STREAM;
            if is_reset && self.payload_left == 1 && !self.is_compared {
                self.is_compared = true;
                if self.code == 0 && *byte == PROTOCOL_ERROR {
                    return Some(frame.stream);
                }
            }
            let len = if is_reset {
                1
            } else {
                self.payload_left.min(bytes.len())
            };
            self.code = self.code << 8 | u32::from(*byte);
            self.payload_left -= len;
            *bytes = bytes.get(len..).unwrap_or_default();
            self.end_payload();
        }
        None
    }

    fn end_payload(&mut self) {
        if self.payload_left == 0 {
            self.frame = None;
            self.code = 0;
            self.is_compared = false;
        }
    }
}

impl<T: AsyncRead + Unpin, F: Fn(FramingError) + Unpin> AsyncRead for Http2Stream<T, F> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.io).poll_read(cx, buffer))?;
        let fresh = buffer.filled().get(before..).unwrap_or_default();
        Poll::Ready(self.received.feed(fresh).map_err(|error| {
            (self.on_refusal)(error.clone());
            io::Error::new(io::ErrorKind::InvalidData, error)
        }))
    }
}

impl<T: AsyncWrite + Unpin, F: Fn(FramingError) + Unpin> AsyncWrite for Http2Stream<T, F> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = match this.written.find_reset(parts) {
            None => ready!(Pin::new(&mut this.io).poll_write_vectored(cx, parts))?,
            Some(Reset { at: 0, stream }) => {
                // HTTP_1_1_REQUIRED makes the client repeat a request, which must not have been forwarded.
                let (code, reason) = match this.received.may_have_body(stream) {
                    true => (PROTOCOL_ERROR, MALFORMED),
                    false => (HTTP_1_1_REQUIRED, REPEATED),
                };
                let written = ready!(Pin::new(&mut this.io).poll_write(cx, &[code]))?;
                if written == 1 {
                    (this.on_refusal)(reason.into());
                }
                written
            }
            Some(Reset { at, .. }) => {
                let before_code: Vec<u8> = parts
                    .iter()
                    .flat_map(|part| part.iter().copied())
                    .take(at)
                    .collect();
                ready!(Pin::new(&mut this.io).poll_write(cx, &before_code))?
            }
        };
        this.written.advance(parts, written);
        Poll::Ready(Ok(written))
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    delegate_polls!(io, poll_flush, poll_shutdown);
}

/// The reason, for the log, of the reset of a request that h2 finds malformed.
const MALFORMED: &str = "a request that is not valid in HTTP/2, or whose body is not";
/// The reason if the client is to repeat it.
const REPEATED: &str = "a request that is not valid in HTTP/2, such as one with a raw quote in its path: the client is \
    asked to send it over HTTP/1.1";
// Error codes (RFC 9113, section 7).
const PROTOCOL_ERROR: u8 = 1;
const HTTP_1_1_REQUIRED: u8 = 13;

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;
    use tokio::io::AsyncWriteExt;

    fn frame(kind: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
        let head = [0, 0, payload.len() as u8, kind, 0, 0, 0, 0, stream];
        [&head, payload].concat()
    }

    fn frames(code: u8) -> Vec<u8> {
        [
            frame(4, 0, &[]),
            frame(RST_STREAM, 1, &[0, 0, 0, 8]),
            frame(0, 3, &[0, 0, 4, 3, 0, 0, 0, 0, 1, 0, 0, 0, 1]),
            frame(RST_STREAM, 5, &[0, 0, 0, code]),
            frame(RST_STREAM, 7, &[1, 0, 0, 1]),
            frame(RST_STREAM, 9, &[0, 0, 0, code]),
        ]
        .concat()
    }

    #[tokio::test]
    async fn only_protocol_errors_of_streams_are_rewritten() {
        let sent = frames(PROTOCOL_ERROR);
        for size in 1..=sent.len() {
            let count = Mutex::new(0);
            let mut io = Http2Stream::new(Vec::new(), |_| *count.lock().unwrap() += 1);
            for part in sent.chunks(size) {
                io.write_all(part).await.unwrap();
            }
            assert_eq!(io.io, frames(HTTP_1_1_REQUIRED), "by {size}");
            assert_eq!(*count.lock().unwrap(), 2);
        }
    }

    #[tokio::test]
    async fn request_with_a_body_is_not_repeated() {
        let mut io = Http2Stream::new(Vec::new(), |_| {});
        let received = [vec![0; 24], frame(1, 5, &[]), frame(0, 5, b"body")].concat();
        io.received.feed(&received).unwrap();
        let resets = |first, second| {
            let first = frame(RST_STREAM, 5, &[0, 0, 0, first]);
            [first, frame(RST_STREAM, 7, &[0, 0, 0, second])].concat()
        };
        io.write_all(&resets(PROTOCOL_ERROR, PROTOCOL_ERROR))
            .await
            .unwrap();
        assert_eq!(io.io, resets(PROTOCOL_ERROR, HTTP_1_1_REQUIRED));
    }
}
