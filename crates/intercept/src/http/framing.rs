//! Framing of HTTP/1 requests, as strict as RFC 9112 is: a defence against request smuggling. And the number of fields in HTTP/2.
//!
//! hyper parses requests, and accepts some of what RFC 9112 forbids: a bare LF, Content-Length beside Transfer-Encoding.
//! It writes each request anew, so nothing ambiguous is forwarded. But a client that sends such a request hopes that two
//! parsers disagree, and a proxy before this one may already have parsed it otherwise. So a monitor parses what a client
//! sends on its way to hyper, and a request with invalid framing is refused.
//!
//! The monitor removes and changes nothing: hyper alone decides how a message is parsed.

mod field_counter;
pub(crate) mod watched_stream;

use std::collections::VecDeque;

use http::HeaderMap;
use http::header::{CONTENT_LENGTH, COOKIE};
use tokio::time::Instant;

/// What is wrong with a request's framing.
pub(crate) type FramingError = &'static str;

/// Parses the framing of one connection's requests as they go by.
#[derive(Debug, Default)]
pub(crate) struct FramingMonitor {
    state: State,
    /// Since when a head is on its way, or is expected.
    head_since: Option<Instant>,
    /// The beginning of a line that has not ended yet.
    line: Vec<u8>,
    head: Head,
    /// The verdict on each request with a complete head, until [`FramingMonitor::next_verdict`] takes it.
    verdicts: VecDeque<Result<(), FramingError>>,
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
    /// Nothing more is parsed: the framing was invalid, or the connection is a tunnel now.
    Done,
}

#[derive(Debug, Default)]
struct Head {
    has_begun: bool,
    is_http10: bool,
    is_connect: bool,
    chunked: bool,
    length: Option<u64>,
}

impl FramingMonitor {
    /// Takes the verdict on the next request that hyper has parsed.
    ///
    /// # Errors
    ///
    /// The framing is invalid; or hyper has parsed more requests than the monitor: the two disagree, as in an attack.
    pub(crate) fn next_verdict(&mut self) -> Result<(), FramingError> {
        let verdict = self.verdicts.pop_front();
        verdict.unwrap_or(Err("the request follows one that is not properly framed"))
    }

    /// Expects the first head from now on.
    pub(crate) fn expect_head(&mut self) {
        self.head_since = Some(Instant::now());
    }

    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn take_verdicts(&mut self) -> impl Iterator<Item = Result<(), FramingError>> {
        self.verdicts.drain(..)
    }

    /// Parses more of what the client sends.
    ///
    /// # Errors
    ///
    /// The framing of a body is invalid. Its request is on its way, so the connection has to be closed.
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> Result<(), FramingError> {
        let fed = self.feed_all(bytes);
        let in_head = self.head.has_begun || !self.line.is_empty();
        self.head_since = match self.state {
            State::Head if in_head => self.head_since.or_else(|| Some(Instant::now())),
            _ => None,
        };
        fed
    }

    fn feed_all(&mut self, mut bytes: &[u8]) -> Result<(), FramingError> {
        while !bytes.is_empty() && self.state != State::Done {
            let fed = match self.state {
                State::Body(left) => self.skip(&mut bytes, left, State::Body, State::Head),
                State::Chunk(left) => self.skip(&mut bytes, left, State::Chunk, State::ChunkEnd),
                _ => self.collect_line(&mut bytes),
            };
            if let Err(error) = fed {
                let in_head = self.state == State::Head;
                self.state = State::Done;
                self.line = Vec::new();
                if !in_head {
                    return Err(error);
                }
                self.verdicts.push_back(Err(error));
            }
        }
        Ok(())
    }

    fn skip(
        &mut self,
        bytes: &mut &[u8],
        left: u64,
        more: fn(u64) -> State,
        then: State,
    ) -> Result<(), FramingError> {
        let n = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
        *bytes = bytes.get(n..).unwrap_or_default();
        let left = left - n as u64;
        self.state = if left == 0 { then } else { more(left) };
        Ok(())
    }

    fn collect_line(&mut self, bytes: &mut &[u8]) -> Result<(), FramingError> {
        let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else {
            self.line.extend_from_slice(bytes);
            *bytes = &[];
            return match self.line.len() > MAX_LINE {
                true => Err("a line of more than 64 KiB"),
                false => Ok(()),
            };
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
        let line = line
            .strip_suffix(b"\r\n")
            .ok_or("a line that ends in LF alone")?;
        if line.iter().any(|byte| matches!(byte, b'\r' | b'\0')) {
            return Err("CR or NUL inside a line");
        }
        match self.state {
            State::Head => self.parse_head_line(line),
            State::ChunkSize => {
                let size = parse_chunk_size(line)?;
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
            State::Trailer => split_header(line).map(drop),
            State::Body(_) | State::Chunk(_) | State::Done => Ok(()),
        }
    }

    fn parse_head_line(&mut self, line: &[u8]) -> Result<(), FramingError> {
        let head = &mut self.head;
        if !head.has_begun {
            // Empty lines before a request are no part of it (RFC 9112, section 2.2).
            head.has_begun = !line.is_empty();
            head.is_http10 = line.ends_with(b" HTTP/1.0");
            head.is_connect = line.starts_with(b"CONNECT ");
            return match line.iter().filter(|byte| **byte == b' ').count() {
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
        let (name, value) = split_header(line)?;
        if name.eq_ignore_ascii_case(b"transfer-encoding") {
            if head.chunked || !value.eq_ignore_ascii_case(b"chunked") {
                return Err("a Transfer-Encoding other than chunked");
            }
            head.chunked = true;
        }
        if name.eq_ignore_ascii_case(b"content-length")
            && head.length.replace(parse_length(value)?).is_some()
        {
            return Err("more than one Content-Length");
        }
        Ok(())
    }

    fn end_head(&mut self) -> Result<(), FramingError> {
        let head = std::mem::take(&mut self.head);
        if head.chunked && head.length.is_some() {
            return Err("Transfer-Encoding and Content-Length");
        }
        if head.chunked && head.is_http10 {
            return Err("Transfer-Encoding in HTTP/1.0");
        }
        self.state = match head.length {
            _ if head.is_connect => State::Done,
            _ if head.chunked => State::ChunkSize,
            Some(1..) => State::Body(head.length.unwrap_or_default()),
            _ => State::Head,
        };
        self.verdicts.push_back(Ok(()));
        Ok(())
    }
}

/// Checks the framing headers of an HTTP/2 request. Its frames tell where it ends; a Content-Length beside them matters
/// to an origin that speaks HTTP/1. h2 refuses two that differ, and passes two equal ones on.
///
/// # Errors
///
/// A Content-Length that is not one number.
pub(crate) fn check_http2(headers: &HeaderMap) -> Result<(), FramingError> {
    let mut lengths = headers.get_all(CONTENT_LENGTH).iter();
    match (lengths.next(), lengths.next()) {
        (None, _) => Ok(()),
        (Some(one), None) => parse_length(one.as_bytes()).map(drop),
        _ => Err("more than one Content-Length"),
    }
}

/// Whether an HTTP/2 request has more header lines than an HTTP/1 request may have. Cookies are one line there, and may be one
/// field each here (RFC 9113, section 8.2.3).
pub(crate) fn has_too_many_fields(headers: &HeaderMap) -> bool {
    headers.len() > MAX_REQUEST_HEADERS
        && headers.len() - headers.get_all(COOKIE).iter().count() >= MAX_REQUEST_HEADERS
}

/// Splits a header line (RFC 9112, section 5): a token, and no space before the colon.
fn split_header(line: &[u8]) -> Result<(&[u8], &[u8]), FramingError> {
    let colon = line.iter().position(|byte| *byte == b':');
    let (name, value) = line.split_at(colon.ok_or("a header without a colon")?);
    let is_token = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    match !name.is_empty() && name.iter().all(is_token) {
        true => Ok((name, value.get(1..).unwrap_or_default().trim_ascii())),
        false => Err("a header's name is not a token"),
    }
}

/// Parses digits and nothing else: no sign, no list.
fn parse_length(value: &[u8]) -> Result<u64, FramingError> {
    let error = "a Content-Length that is not a number";
    let text = str::from_utf8(value).map_err(|_| error)?;
    match value.iter().all(u8::is_ascii_digit) {
        true => text.parse().map_err(|_| error),
        false => Err(error),
    }
}

fn parse_chunk_size(line: &[u8]) -> Result<u64, FramingError> {
    let digits = line.split(|byte| *byte == b';').next().unwrap_or_default();
    let digits = digits.trim_ascii_end();
    let error = "a chunk's size is not a number";
    let text = str::from_utf8(digits).map_err(|_| error)?;
    match digits.iter().all(u8::is_ascii_hexdigit) {
        true => u64::from_str_radix(text, 16).map_err(|_| error),
        false => Err(error),
    }
}

/// Header lines of a request.
pub(crate) const MAX_REQUEST_HEADERS: usize = 200;
/// Bytes of a line: as many as hyper accepts of a whole head.
const MAX_LINE: usize = 64 * 1024;

#[cfg(test)]
mod tests;
