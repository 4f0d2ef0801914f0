//! The head of an HTTP/1 request, line by line.

use std::ops::Range;

use http::{StatusCode, Uri};

use super::error::FramingError;

/// The head of a request as far as it has come, held back until it is complete.
#[derive(Debug, Default)]
pub(super) struct RequestHead {
    /// The head as it came.
    bytes: Vec<u8>,
    /// The offset at which the current line begins.
    line_start: usize,
    /// Whether part of the head came with an earlier read.
    is_held: bool,
    request_line: Option<RequestLine>,
    headers: FramingHeaders,
}

/// The headers so far: their number, and those that frame the body.
#[derive(Debug, Default)]
struct FramingHeaders {
    count: usize,
    is_chunked: bool,
    length: Option<u64>,
    has_upgrade: bool,
}

#[derive(Debug)]
struct RequestLine {
    is_http10: bool,
    is_connect: bool,
    /// The target's range in the head, and its percent-encoded form, if it has to be encoded.
    encoded: Option<(Range<usize>, Vec<u8>)>,
}

/// How the body of a request is framed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BodyFraming {
    Length(u64),
    Chunked,
    /// What follows a CONNECT is no body, and may be no HTTP.
    Tunnel,
}

/// A complete head.
#[derive(Debug)]
pub(super) struct CompleteHead {
    pub(super) body: BodyFraming,
    /// Whether the client wants to switch protocols.
    pub(super) has_upgrade: bool,
    /// The head to pass on.
    pub(super) bytes: Vec<u8>,
    /// Whether these bytes all came with this read, and are unchanged.
    pub(super) is_as_read: bool,
}

impl RequestHead {
    /// Whether a request has begun; empty lines before it are no part of it (RFC 9112, section 2.2).
    pub(super) fn has_begun(&self) -> bool {
        self.request_line.is_some() || self.bytes.len() > self.line_start
    }

    /// Notes that a read has ended.
    pub(super) fn hold(&mut self) {
        self.is_held = !self.bytes.is_empty();
    }

    /// Takes bytes up to the end of a line, and returns the head once that is its last line.
    pub(super) fn take_line(
        &mut self,
        bytes: &mut &[u8],
    ) -> Result<Option<CompleteHead>, FramingError> {
        let end = bytes.iter().position(|byte| *byte == b'\n');
        let (taken, rest) = bytes.split_at(end.map_or(bytes.len(), |end| end + 1));
        *bytes = rest;
        let len_before = self.bytes.len();
        if len_before == 0 {
            // Mostly the head comes whole.
            let expected = taken.len() + bytes.len();
            self.bytes.reserve(expected.min(MAX_REQUEST_HEAD));
        }
        self.bytes.extend_from_slice(taken);
        if self.bytes.len() > MAX_REQUEST_HEAD {
            return Err(head_too_large());
        }
        if self.request_line.is_none() {
            refuse_other_protocol(self.bytes.get(self.line_start..).unwrap_or_default())?;
        }
        if end.is_none() {
            // A client that does not speak HTTP may send no end of line at all, so the beginning is checked.
            return self.check_partial_line(len_before).map(|()| None);
        }
        let start = std::mem::replace(&mut self.line_start, self.bytes.len());
        let line = strip_line_end(self.bytes.get(start..).unwrap_or_default())?;
        match (self.request_line.is_some(), line.is_empty()) {
            (true, true) => return self.complete().map(Some),
            (true, false) => self.headers.add(line)?,
            (false, true) => {}
            (false, false) => self.request_line = Some(RequestLine::parse(line, start)?),
        }
        Ok(None)
    }

    /// Checks an incomplete line, after the first `checked` bytes of the head.
    fn check_partial_line(&self, checked: usize) -> Result<(), FramingError> {
        let line = self.bytes.get(self.line_start..).unwrap_or_default();
        if self.request_line.is_none() && line != b"\r" {
            check_method(line.split(|byte| *byte == b' ').next().unwrap_or_default())?;
        }
        // A CR at the end is not checked until the next byte, which may be LF.
        let fresh_start = checked.saturating_sub(self.line_start).saturating_sub(1);
        let fresh = line.get(fresh_start..).unwrap_or_default();
        check_controls(fresh.strip_suffix(b"\r").unwrap_or(fresh))
    }

    fn complete(&mut self) -> Result<CompleteHead, FramingError> {
        let is_http10 = self
            .request_line
            .as_ref()
            .is_some_and(|line| line.is_http10);
        if self.headers.is_chunked && self.headers.length.is_some() {
            return Err("Transfer-Encoding and Content-Length".into());
        }
        if self.headers.is_chunked && is_http10 {
            return Err("Transfer-Encoding in HTTP/1.0".into());
        }
        if self.encoded_len() > MAX_REQUEST_HEAD {
            return Err(head_too_large());
        }
        let head = std::mem::take(self);
        let is_connect = head
            .request_line
            .as_ref()
            .is_some_and(|line| line.is_connect);
        let (mut bytes, mut is_as_read) = (head.bytes, !head.is_held);
        if let Some((range, target)) = head.request_line.and_then(|line| line.encoded) {
            bytes.splice(range, target);
            is_as_read = false;
        }
        Ok(CompleteHead {
            body: if is_connect {
                BodyFraming::Tunnel
            } else if head.headers.is_chunked {
                BodyFraming::Chunked
            } else {
                BodyFraming::Length(head.headers.length.unwrap_or_default())
            },
            has_upgrade: head.headers.has_upgrade,
            bytes,
            is_as_read,
        })
    }

    /// The length of the head with its target percent-encoded.
    fn encoded_len(&self) -> usize {
        let encoded = self
            .request_line
            .as_ref()
            .and_then(|line| line.encoded.as_ref());
        encoded.map_or(self.bytes.len(), |(range, target)| {
            self.bytes.len() - range.len() + target.len()
        })
    }

    /// Writes a head that hyper can parse in place of this refused one: with the valid parts of its request line, and the
    /// headers that tell the host and the format of the answer. `rest` was read together with the refused line.
    pub(super) fn substitute(self, rest: &[u8]) -> Vec<u8> {
        let mut bytes = self.bytes;
        bytes.extend_from_slice(rest);
        let mut lines = bytes
            .split(|byte| *byte == b'\n')
            .map(|line| line.strip_suffix(b"\r").unwrap_or(line))
            .skip_while(|line| line.is_empty());
        let request_line = lines.next().unwrap_or_default();
        let mut words = request_line.split(|byte| *byte == b' ');
        let method = words.next().filter(|method| check_method(method).is_ok());
        let target = words.next().and_then(|target| {
            check_controls(target).ok()?;
            let target = encode_target(target).unwrap_or_else(|| target.to_vec());
            let is_valid = target.len() <= MAX_SUBSTITUTED_TARGET
                && !target.contains(&b'\t')
                && check_target(&target).is_ok();
            is_valid.then_some(target)
        });
        let (method, target) = match (method, target) {
            (Some(method), Some(target)) => (method, target),
            (Some(method), None) => (method, b"/".to_vec()),
            (None, _) => (&b"GET"[..], b"/".to_vec()),
        };
        let mut head = [method, b" ", &target, b" HTTP/1.1\r\n"].concat();
        let kept = lines
            .take_while(|line| !line.is_empty())
            .filter(|line| {
                check_controls(line).is_ok()
                    && split_header(line).is_ok_and(|(name, _)| is_kept(name))
            })
            .take(KEPT_HEADERS.len());
        let room = MAX_REQUEST_HEAD - CLOSE.len();
        for line in kept {
            if head.len() + line.len() + b"\r\n".len() > room {
                continue;
            }
            head.extend_from_slice(line);
            head.extend_from_slice(b"\r\n");
        }
        head.extend_from_slice(CLOSE);
        head
    }
}

impl FramingHeaders {
    fn add(&mut self, line: &[u8]) -> Result<(), FramingError> {
        let (name, value) = split_header(line)?;
        self.count += 1;
        if self.count > MAX_REQUEST_HEADERS {
            return Err(FramingError::too_many(MAX_REQUEST_HEADERS, "header lines"));
        }
        if name.eq_ignore_ascii_case(b"transfer-encoding") {
            if self.is_chunked || !value.eq_ignore_ascii_case(b"chunked") {
                return Err("a Transfer-Encoding other than chunked".into());
            }
            self.is_chunked = true;
        }
        if name.eq_ignore_ascii_case(b"content-length") {
            let length = parse_length(value)?;
            if self.length.replace(length).is_some() {
                return Err("more than one Content-Length".into());
            }
        }
        self.has_upgrade |= name.eq_ignore_ascii_case(b"upgrade");
        Ok(())
    }
}

impl RequestLine {
    /// Parses a line that begins at offset `start` of the head.
    fn parse(line: &[u8], start: usize) -> Result<Self, FramingError> {
        let mut words = line.split(|byte| *byte == b' ');
        let (Some(method), Some(target), Some(version), None) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            return Err("a request line that is not three words".into());
        };
        check_method(method)?;
        if line == b"PRI * HTTP/2.0" {
            return Err("HTTP/2 without TLS is not supported".into());
        }
        if version != b"HTTP/1.1" && version != b"HTTP/1.0" {
            return Err("a version of HTTP other than 1.0 and 1.1".into());
        }
        if target.is_empty() || target.contains(&b'\t') {
            return Err("a request line that is not three words".into());
        }
        let encoded = encode_target(target);
        check_target(encoded.as_deref().unwrap_or(target))?;
        let target_start = start + method.len() + 1;
        Ok(Self {
            is_http10: version == b"HTTP/1.0",
            is_connect: method == b"CONNECT",
            encoded: encoded.map(|encoded| (target_start..target_start + target.len(), encoded)),
        })
    }
}

/// Whether a substitute has this header of the refused head.
fn is_kept(name: &[u8]) -> bool {
    KEPT_HEADERS
        .iter()
        .any(|kept| name.eq_ignore_ascii_case(kept))
}

fn head_too_large() -> FramingError {
    FramingError::too_many(MAX_REQUEST_HEAD / 1024, "KiB in the head")
}

/// Strips the CRLF of a line.
pub(super) fn strip_line_end(line: &[u8]) -> Result<&[u8], FramingError> {
    let line = line
        .strip_suffix(b"\r\n")
        .ok_or("a line that ends in LF alone")?;
    check_controls(line)?;
    Ok(line)
}

/// Refuses control characters, which neither a line of a head or trailer (RFC 9110, section 5.5) nor a chunk's extension may
/// have.
fn check_controls(line: &[u8]) -> Result<(), FramingError> {
    let control = line
        .iter()
        .find(|byte| byte.is_ascii_control() && **byte != b'\t');
    match control {
        None => Ok(()),
        Some(b'\r' | b'\0') => Err("CR or NUL inside a line".into()),
        Some(_) => Err("a control character inside a line".into()),
    }
}

/// Refuses a client that takes this for a proxy of another kind, and names its protocol. The first byte shows it: the type of a
/// TLS record with a handshake (RFC 8446, section 5.1), or the version of SOCKS (RFC 1928, section 3).
fn refuse_other_protocol(bytes: &[u8]) -> Result<(), FramingError> {
    match bytes.first() {
        Some(0x16) => Err(
            "a TLS ClientHello, which is no HTTP request: if this is the proxy's port, write https_proxy=http://HOST:PORT"
                .into(),
        ),
        Some(4 | 5) => Err(
            "a SOCKS client, which sends no HTTP: this is a proxy for HTTP, so write https_proxy=http://HOST:PORT"
                .into(),
        ),
        _ => Ok(()),
    }
}

fn check_method(method: &[u8]) -> Result<(), FramingError> {
    if is_token(method) {
        Ok(())
    } else {
        Err("a method that is not a token: this is no HTTP request".into())
    }
}

/// Checks that hyper can parse a target.
fn check_target(target: &[u8]) -> Result<(), FramingError> {
    if target.len() > MAX_TARGET {
        let detail = format!("a request target of more than {MAX_TARGET} bytes");
        return Err(FramingError::new(StatusCode::URI_TOO_LONG, detail));
    }
    // A target that was encoded and begins with a slash is always valid: a path, with or without a query.
    if target.starts_with(b"/") || Uri::try_from(target).is_ok() {
        Ok(())
    } else {
        Err("a request target that is no URI".into())
    }
}

/// Percent-encodes the bytes of a target that [`Uri`] refuses (RFC 3986, section 2.1) and that clients send all the same:
/// PromQL and LogQL in a query, such as `{job="api"}`. Bytes that RFC 3986 forbids and [`Uri`] accepts stay as they are. `None`
/// if no byte has to be encoded.
fn encode_target(target: &[u8]) -> Option<Vec<u8>> {
    // Most targets have none of these bytes, whatever their position.
    let may_be_refused = |byte: &u8| matches!(byte, b'<' | b'>' | b'"' | b'`' | 0x80..);
    if !target.iter().any(may_be_refused) {
        return None;
    }
    let is_text = str::from_utf8(target).is_ok();
    let query = target.iter().position(|byte| *byte == b'?');
    let is_refused = |(at, byte): (usize, &u8)| match byte {
        b'<' | b'>' => true,
        b'"' => query.is_some_and(|query| at > query),
        b'`' => query.is_none_or(|query| at < query),
        0x80.. => !is_text,
        _ => false,
    };
    if !target.iter().enumerate().any(is_refused) {
        return None;
    }
    let mut encoded = Vec::with_capacity(target.len() + 16);
    for (at, byte) in target.iter().enumerate() {
        if is_refused((at, byte)) {
            encoded.extend_from_slice(percent_encoding::percent_encode_byte(*byte).as_bytes());
        } else {
            encoded.push(*byte);
        }
    }
    Some(encoded)
}

/// Splits a header line into name and value (RFC 9112, section 5). The name is a token, with no space before the colon.
pub(super) fn split_header(line: &[u8]) -> Result<(&[u8], &[u8]), FramingError> {
    if line.starts_with(b" ") || line.starts_with(b"\t") {
        return Err("a header on more than one line".into());
    }
    let colon = line.iter().position(|byte| *byte == b':');
    let (name, value) = line.split_at(colon.ok_or("a header without a colon")?);
    if !is_token(name) {
        return Err("a header's name is not a token".into());
    }
    Ok((name, value.get(1..).unwrap_or_default().trim_ascii()))
}

/// Whether these bytes are a token (RFC 9110, section 5.6.2).
fn is_token(bytes: &[u8]) -> bool {
    let is_tchar = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    !bytes.is_empty() && bytes.iter().all(is_tchar)
}

/// Parses digits and nothing else: no sign, no list.
pub(super) fn parse_length(value: &[u8]) -> Result<u64, FramingError> {
    let error = "a Content-Length that is not a number";
    if !value.iter().all(u8::is_ascii_digit) {
        return Err(error.into());
    }
    let text = str::from_utf8(value).map_err(|_| error)?;
    text.parse().map_err(|_| error.into())
}

/// Bytes of a request's head.
pub(crate) const MAX_REQUEST_HEAD: usize = 64 * 1024;
/// Header lines of a request.
pub(crate) const MAX_REQUEST_HEADERS: usize = 200;
/// Bytes of a request target: the most that [`Uri`] accepts.
const MAX_TARGET: usize = u16::MAX as usize - 1;
/// The end of a substitute.
const CLOSE: &[u8] = b"Connection: close\r\n\r\n";
/// A longer target is left out of a substitute, because hyper refuses a head of more than [`MAX_REQUEST_HEAD`].
const MAX_SUBSTITUTED_TARGET: usize = MAX_REQUEST_HEAD / 2;
const KEPT_HEADERS: [&[u8]; 4] = [b"host", b"accept", b"content-type", b"user-agent"];
