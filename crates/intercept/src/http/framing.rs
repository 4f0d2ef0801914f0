//! Where HTTP/1 messages begin and end, told as strictly as it can be.
//!
//! hyper reads requests, and forgives some of what RFC 9112 forbids: a bare LF, Content-Length beside
//! Transfer-Encoding. It writes each request anew, so nothing ambiguous is passed on; but whoever sends such
//! a request hopes that two readers disagree, and may already have been read otherwise by somebody before us.
//! So what a client sends is watched on its way to hyper, and a request that smells is refused.
//!
//! Nothing is taken out or changed here, and what hyper makes of a message stays hyper's.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::HeaderMap;
use http::header::CONTENT_LENGTH;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

/// What is wrong with a request's framing.
pub(crate) type Smell = &'static str;

/// The requests of one connection, as they go by.
#[derive(Debug, Default)]
pub(crate) struct Framing {
    state: State,
    /// Since when a head is on its way, or should be.
    awaited: Option<Instant>,
    /// A line that has not ended yet.
    line: Vec<u8>,
    head: Head,
    /// Of each request whose head is complete and that nobody has asked about.
    verdicts: VecDeque<Result<(), Smell>>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Head,
    Body(u64),
    ChunkSize,
    Chunk(u64),
    ChunkEnd,
    Trailer,
    /// There is nothing more to be told: something smelled, or it is a tunnel now.
    Over,
}

#[derive(Debug, Default)]
struct Head {
    has_begun: bool,
    is_http10: bool,
    is_connect: bool,
    chunked: bool,
    length: Option<u64>,
}

impl Framing {
    /// The next request that hyper has read. Where the two of us see another number of requests, there is
    /// none, and that smells most of all.
    pub(crate) fn next(&mut self) -> Result<(), Smell> {
        let verdict = self.verdicts.pop_front();
        verdict.unwrap_or(Err("the request follows one that is not properly framed"))
    }

    /// Expects the first head from now on.
    pub(crate) fn await_head(&mut self) {
        self.awaited = Some(Instant::now());
    }

    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn take_verdicts(&mut self) -> impl Iterator<Item = Result<(), Smell>> {
        self.verdicts.drain(..)
    }

    /// Looks at more of what the client sends.
    ///
    /// # Errors
    ///
    /// A body whose framing smells. Its request is on its way, so all that is left is to break off.
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> Result<(), Smell> {
        let fed = self.feed_all(bytes);
        let in_head = self.head.has_begun || !self.line.is_empty();
        self.awaited = match self.state {
            State::Head if in_head => self.awaited.or_else(|| Some(Instant::now())),
            _ => None,
        };
        fed
    }

    fn feed_all(&mut self, mut bytes: &[u8]) -> Result<(), Smell> {
        while !bytes.is_empty() && self.state != State::Over {
            let fed = match self.state {
                State::Body(left) => self.pass(&mut bytes, left, State::Body, State::Head),
                State::Chunk(left) => self.pass(&mut bytes, left, State::Chunk, State::ChunkEnd),
                _ => self.collect(&mut bytes),
            };
            if let Err(smell) = fed {
                let in_head = self.state == State::Head;
                self.state = State::Over;
                self.line = Vec::new();
                if !in_head {
                    return Err(smell);
                }
                self.verdicts.push_back(Err(smell));
            }
        }
        Ok(())
    }

    fn pass(
        &mut self,
        bytes: &mut &[u8],
        left: u64,
        more: fn(u64) -> State,
        then: State,
    ) -> Result<(), Smell> {
        let n = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
        *bytes = bytes.get(n..).unwrap_or_default();
        let left = left - n as u64;
        self.state = if left == 0 { then } else { more(left) };
        Ok(())
    }

    fn collect(&mut self, bytes: &mut &[u8]) -> Result<(), Smell> {
        let Some(end) = bytes.iter().position(|octet| *octet == b'\n') else {
            self.line.extend_from_slice(bytes);
            *bytes = &[];
            return match self.line.len() > LONGEST_LINE {
                true => Err("a line of more than 64 KiB"),
                false => Ok(()),
            };
        };
        let (line, rest) = bytes.split_at(end + 1);
        *bytes = rest;
        if self.line.is_empty() {
            return self.line(line);
        }
        let mut whole = std::mem::take(&mut self.line);
        whole.extend_from_slice(line);
        self.line(&whole)
    }

    fn line(&mut self, line: &[u8]) -> Result<(), Smell> {
        let line = line
            .strip_suffix(b"\r\n")
            .ok_or("a line that ends in LF alone")?;
        if line.iter().any(|octet| matches!(octet, b'\r' | b'\0')) {
            return Err("CR or NUL inside a line");
        }
        match self.state {
            State::Head => self.head_line(line),
            State::ChunkSize => {
                let size = chunk_size(line)?;
                self.state = if size == 0 {
                    State::Trailer
                } else {
                    State::Chunk(size)
                };
                Ok(())
            }
            State::ChunkEnd if line.is_empty() => {
                self.state = State::ChunkSize;
                Ok(())
            }
            State::ChunkEnd => Err("a chunk longer than its size"),
            State::Trailer if line.is_empty() => {
                self.state = State::Head;
                Ok(())
            }
            State::Trailer => name_and_value(line).map(drop),
            State::Body(_) | State::Chunk(_) | State::Over => Ok(()),
        }
    }

    fn head_line(&mut self, line: &[u8]) -> Result<(), Smell> {
        let head = &mut self.head;
        if !head.has_begun {
            // Empty lines before a request are no part of it (RFC 9112, section 2.2).
            head.has_begun = !line.is_empty();
            head.is_http10 = line.ends_with(b" HTTP/1.0");
            head.is_connect = line.starts_with(b"CONNECT ");
            return match line.iter().filter(|octet| **octet == b' ').count() {
                2 => Ok(()),
                0 if line.is_empty() => Ok(()),
                _ => Err("a request line that is not three words"),
            };
        }
        if line.is_empty() {
            return self.end_head();
        }
        if line.starts_with(b" ") || line.starts_with(b"\t") {
            return Err("a header on more than one line");
        }
        let (name, value) = name_and_value(line)?;
        if name.eq_ignore_ascii_case(b"transfer-encoding") {
            if head.chunked || !value.eq_ignore_ascii_case(b"chunked") {
                return Err("a Transfer-Encoding other than chunked");
            }
            head.chunked = true;
        }
        if name.eq_ignore_ascii_case(b"content-length")
            && head.length.replace(length(value)?).is_some()
        {
            return Err("more than one Content-Length");
        }
        Ok(())
    }

    fn end_head(&mut self) -> Result<(), Smell> {
        let head = std::mem::take(&mut self.head);
        if head.chunked && head.length.is_some() {
            return Err("Transfer-Encoding and Content-Length");
        }
        if head.chunked && head.is_http10 {
            return Err("Transfer-Encoding in HTTP/1.0");
        }
        self.state = match head.length {
            _ if head.is_connect => State::Over,
            _ if head.chunked => State::ChunkSize,
            Some(1..) => State::Body(head.length.unwrap_or_default()),
            _ => State::Head,
        };
        self.verdicts.push_back(Ok(()));
        Ok(())
    }
}

/// The same for a request of HTTP/2, whose frames say where it ends: a length beside them is for an origin that reads
/// HTTP/1. h2 refuses two that differ, and passes on two that don't.
///
/// # Errors
///
/// A length that is not one number.
pub(crate) fn of_http2(headers: &HeaderMap) -> Result<(), Smell> {
    let mut lengths = headers.get_all(CONTENT_LENGTH).iter();
    match (lengths.next(), lengths.next()) {
        (None, _) => Ok(()),
        (Some(one), None) => length(one.as_bytes()).map(drop),
        _ => Err("more than one Content-Length"),
    }
}

/// RFC 9112, section 5: no space before the colon, and a token before it.
fn name_and_value(line: &[u8]) -> Result<(&[u8], &[u8]), Smell> {
    let colon = line.iter().position(|octet| *octet == b':');
    let (name, value) = line.split_at(colon.ok_or("a header without a colon")?);
    let is_token = |octet: &u8| octet.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(octet);
    match !name.is_empty() && name.iter().all(is_token) {
        true => Ok((name, value.get(1..).unwrap_or_default().trim_ascii())),
        false => Err("a header's name is not a token"),
    }
}

/// Digits and nothing else: no sign, no list.
fn length(value: &[u8]) -> Result<u64, Smell> {
    let smell = "a Content-Length that is not a number";
    let text = str::from_utf8(value).map_err(|_| smell)?;
    match value.iter().all(u8::is_ascii_digit) {
        true => text.parse().map_err(|_| smell),
        false => Err(smell),
    }
}

fn chunk_size(line: &[u8]) -> Result<u64, Smell> {
    let digits = line
        .split(|octet| *octet == b';')
        .next()
        .unwrap_or_default();
    let digits = digits.trim_ascii_end();
    let smell = "a chunk's size is not a number";
    let text = str::from_utf8(digits).map_err(|_| smell)?;
    match digits.iter().all(u8::is_ascii_hexdigit) {
        true => u64::from_str_radix(text, 16).map_err(|_| smell),
        false => Err(smell),
    }
}

/// A stream that is watched while it is read.
#[derive(Debug)]
pub(crate) struct Watched<T> {
    io: T,
    framing: Shared,
}

/// What the reader of the stream and the reader of the requests both look at.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shared {
    framing: Arc<Mutex<Framing>>,
    /// Told when something has come.
    came: Arc<Notify>,
}

impl Shared {
    /// Returns once a head has been on its way for as long as `limit`.
    pub(crate) async fn head_is_late(&self, limit: Duration) {
        loop {
            let came = self.came.notified();
            let awaited = self.lock().awaited;
            match awaited.map(|since| since + limit) {
                None => came.await,
                Some(deadline) if deadline <= Instant::now() => return,
                Some(deadline) => sleep_until(deadline).await,
            }
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Framing> {
        self.framing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Watched<T> {
    pub(crate) fn new(io: T, framing: Shared) -> Self {
        Self { io, framing }
    }

    pub(crate) fn into_inner(self) -> T {
        self.io
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Watched<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.io).poll_read(cx, buffer))?;
        let fresh = buffer.filled().get(before..).unwrap_or_default();
        let fed = self.framing.lock().feed(fresh);
        self.framing.came.notify_one();
        Poll::Ready(fed.map_err(|smell| io::Error::new(io::ErrorKind::InvalidData, smell)))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Watched<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

/// As long as hyper takes a whole head.
const LONGEST_LINE: usize = 64 * 1024;

#[cfg(test)]
mod tests;
