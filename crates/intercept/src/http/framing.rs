//! Checks the framing of HTTP/1 requests as strictly as RFC 9112, against request smuggling; and the header fields of HTTP/2.
//!
//! hyper parses requests, and accepts some of what RFC 9112 forbids: a bare LF, Content-Length beside Transfer-Encoding.
//! It writes each request anew, so nothing ambiguous is forwarded. But a client that sends such a request hopes that two
//! parsers disagree, and a proxy before this one may already have parsed it otherwise. So a monitor parses what a client
//! sends on its way to hyper, and a request with invalid framing is refused.
//!
//! hyper answers what it can't parse with a bare status, below the layer that logs. So the monitor refuses all that hyper would
//! refuse, and passes each head on as a whole. In place of a refused head hyper gets a [substitute](RequestHead::substitute)
//! that it can parse, and the service answers with the reason. A valid head passes as it came, except that bytes of the request
//! target which a URI can't have are percent-encoded. Bodies pass unchanged.

mod error;
pub(crate) mod field_counter;
pub(crate) mod frame_header;
mod request_head;
pub(crate) mod watched_stream;

use std::collections::VecDeque;

use http::HeaderMap;
use http::header::{CONTENT_LENGTH, COOKIE};
use tokio::time::Instant;

pub(crate) use error::FramingError;
use request_head::{
    BodyFraming, CompleteHead, RequestHead, parse_length, split_header, strip_line_end,
};
pub(crate) use request_head::{MAX_REQUEST_HEAD, MAX_REQUEST_HEADERS};

/// Parses the framing of one connection's requests as they go by.
#[derive(Debug, Default)]
pub(crate) struct FramingMonitor {
    state: State,
    /// Since when a head is on its way, or is expected.
    head_since: Option<Instant>,
    /// The beginning of an incomplete line of a chunked body.
    line: Vec<u8>,
    head: RequestHead,
    /// Whether a request may have switched protocols. What follows may then be no head, and is not held back.
    may_have_switched: bool,
    /// The requests so far.
    requests: u64,
    /// The verdict on each request with a complete head, until [`FramingMonitor::next_verdict`] takes it.
    verdicts: VecDeque<Result<(), FramingError>>,
}

/// What hyper gets of the bytes that were read.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Passed {
    /// How many of the bytes, from the first on, pass as they came.
    pub(crate) unchanged: usize,
    /// What passes in place of the other bytes.
    pub(crate) replaced: Vec<u8>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Head,
    /// With the bytes that are left of the body.
    Body(u64),
    ChunkSize,
    /// With the bytes that are left of the chunk.
    Chunk(u64),
    ChunkEnd,
    Trailer,
    /// A head was refused: nothing more is passed on.
    Refused,
    /// Nothing more is parsed: the framing was invalid, or the connection is a tunnel now.
    Done,
}

impl FramingMonitor {
    /// Takes the verdict on the next request that hyper has parsed.
    ///
    /// # Errors
    ///
    /// The framing is invalid; or hyper has parsed more requests than the monitor: the two disagree, as in an attack.
    pub(crate) fn next_verdict(&mut self) -> Result<(), FramingError> {
        let verdict = self.verdicts.pop_front();
        verdict.unwrap_or_else(|| Err("the request follows one that is not properly framed".into()))
    }

    /// Expects the first head from now on.
    pub(crate) fn expect_head(&mut self) {
        self.head_since = Some(Instant::now());
    }

    /// Whether a head is on its way, or is expected.
    pub(crate) fn awaits_head(&self) -> bool {
        self.head_since.is_some()
    }

    /// The requests so far, each of which gets an answer.
    pub(crate) fn requests(&self) -> u64 {
        self.requests
    }

    /// Whether the body of a request is on its way.
    pub(crate) fn is_in_body(&self) -> bool {
        !matches!(self.state, State::Head | State::Refused | State::Done)
    }

    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn take_verdicts(&mut self) -> impl Iterator<Item = Result<(), FramingError>> {
        self.verdicts.drain(..)
    }

    /// Parses more of what the client sends, and returns what hyper gets of it.
    ///
    /// # Errors
    ///
    /// The framing of a body is invalid. Its request is on its way, so the connection has to be closed.
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> Result<Passed, FramingError> {
        let mut passed = Passed::default();
        let fed = self.feed_all(bytes, &mut passed);
        self.head.hold();
        let is_in_head = self.state == State::Head && self.head.has_begun();
        self.head_since = is_in_head.then(|| self.head_since.unwrap_or_else(Instant::now));
        fed.map(|()| passed)
    }

    fn feed_all(&mut self, mut bytes: &[u8], passed: &mut Passed) -> Result<(), FramingError> {
        while !bytes.is_empty() {
            let before = bytes;
            match self.state {
                State::Head => {
                    self.feed_head(&mut bytes, passed);
                    continue;
                }
                State::Body(left) => self.skip(&mut bytes, left, State::Body, State::Head),
                State::Chunk(left) => self.skip(&mut bytes, left, State::Chunk, State::ChunkEnd),
                State::Refused => return Ok(()),
                State::Done => bytes = &[],
                _ => {
                    if let Err(error) = self.collect_line(&mut bytes) {
                        self.state = State::Done;
                        self.line = Vec::new();
                        return Err(error);
                    }
                }
            }
            passed.append(consumed(before, bytes));
        }
        Ok(())
    }

    fn feed_head(&mut self, bytes: &mut &[u8], passed: &mut Passed) {
        let before = *bytes;
        let taken = self.head.take_line(bytes);
        if self.may_have_switched {
            passed.append(consumed(before, bytes));
        }
        match taken {
            Ok(None) => {}
            Ok(Some(head)) => {
                self.requests += 1;
                self.state = match head.body {
                    BodyFraming::Tunnel => State::Done,
                    BodyFraming::Chunked => State::ChunkSize,
                    BodyFraming::Length(0) => State::Head,
                    BodyFraming::Length(length) => State::Body(length),
                };
                self.verdicts.push_back(Ok(()));
                if !self.may_have_switched {
                    passed.append_head(&head);
                }
                self.may_have_switched |= head.has_upgrade;
            }
            Err(error) => {
                self.requests += 1;
                self.verdicts.push_back(Err(error));
                let head = std::mem::take(&mut self.head);
                if self.may_have_switched {
                    self.state = State::Done;
                } else {
                    self.state = State::Refused;
                    passed.replaced.extend(head.substitute(bytes));
                }
            }
        }
    }

    /// Skips up to `left` bytes. The state is `next` after the last of them, else `current` with those that are left.
    fn skip(&mut self, bytes: &mut &[u8], left: u64, current: fn(u64) -> State, next: State) {
        let n = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
        *bytes = bytes.get(n..).unwrap_or_default();
        let left = left - n as u64;
        self.state = if left == 0 { next } else { current(left) };
    }

    /// Collects a line of a chunked body.
    fn collect_line(&mut self, bytes: &mut &[u8]) -> Result<(), FramingError> {
        let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else {
            self.line.extend_from_slice(bytes);
            *bytes = &[];
            if self.line.len() > MAX_LINE {
                return Err(FramingError::too_many(MAX_LINE / 1024, "KiB in a line"));
            }
            return Ok(());
        };
        let (line, rest) = bytes.split_at(end + 1);
        *bytes = rest;
        if self.line.is_empty() {
            return self.parse_line(line);
        }
        let mut whole = std::mem::take(&mut self.line);
        whole.extend_from_slice(line);
        self.parse_line(&whole)
    }

    fn parse_line(&mut self, line: &[u8]) -> Result<(), FramingError> {
        let line = strip_line_end(line)?;
        match self.state {
            State::ChunkSize => {
                self.state = match parse_chunk_size(line)? {
                    0 => State::Trailer,
                    size => State::Chunk(size),
                };
            }
            State::ChunkEnd if line.is_empty() => self.state = State::ChunkSize,
            State::ChunkEnd => return Err("a chunk longer than its size".into()),
            State::Trailer if line.is_empty() => self.state = State::Head,
            State::Trailer => {
                split_header(line)?;
            }
            _ => {}
        }
        Ok(())
    }
}

impl Passed {
    fn append_head(&mut self, head: &CompleteHead) {
        if head.is_as_read {
            self.append(&head.bytes);
        } else {
            self.replaced.extend_from_slice(&head.bytes);
        }
    }

    fn append(&mut self, bytes: &[u8]) {
        if self.replaced.is_empty() {
            self.unchanged += bytes.len();
        } else {
            self.replaced.extend_from_slice(bytes);
        }
    }
}

/// The bytes of `before` that come before its tail `rest`.
fn consumed<'b>(before: &'b [u8], rest: &[u8]) -> &'b [u8] {
    before.get(..before.len() - rest.len()).unwrap_or_default()
}

/// Checks the number of header fields of an HTTP/2 request, and its Content-Length, which an origin that speaks HTTP/1 would
/// rely on. h2 refuses two that differ, and accepts two equal ones.
pub(crate) fn check_http2(headers: &HeaderMap) -> Result<(), FramingError> {
    if has_too_many_fields(headers) {
        return Err(FramingError::too_many(MAX_REQUEST_HEADERS, "header fields"));
    }
    let mut lengths = headers.get_all(CONTENT_LENGTH).iter();
    match (lengths.next(), lengths.next()) {
        (None, _) => Ok(()),
        (Some(one), None) => parse_length(one.as_bytes()).map(drop),
        _ => Err("more than one Content-Length".into()),
    }
}

/// Whether an HTTP/2 request has more header lines than an HTTP/1 request may have. All cookies count as one, because HTTP/1
/// sends them in one line where HTTP/2 may send a field for each (RFC 9113, section 8.2.3).
fn has_too_many_fields(headers: &HeaderMap) -> bool {
    headers.len() > MAX_REQUEST_HEADERS
        && headers.len() - headers.get_all(COOKIE).iter().count() >= MAX_REQUEST_HEADERS
}

fn parse_chunk_size(line: &[u8]) -> Result<u64, FramingError> {
    let digits = line.split(|byte| *byte == b';').next().unwrap_or_default();
    let digits = digits.trim_ascii_end();
    let error = "a chunk's size is not a number";
    // A sign, which `from_str_radix` accepts, is no digit.
    if !digits.iter().all(u8::is_ascii_hexdigit) {
        return Err(error.into());
    }
    let text = str::from_utf8(digits).map_err(|_| error)?;
    u64::from_str_radix(text, 16).map_err(|_| error.into())
}

/// Bytes of a line of a body.
const MAX_LINE: usize = 64 * 1024;

#[cfg(test)]
mod tests;
