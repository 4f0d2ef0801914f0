//! Trace context of a request (W3C Trace Context, <https://www.w3.org/TR/trace-context/>): which trace it belongs to.

use std::fmt::{self, Display, Formatter};

use http::header::{HeaderMap, HeaderName, HeaderValue};

/// Position of a request in a trace, as its `traceparent` and `tracestate` headers have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TraceContext {
    parent: HeaderValue,
    state: Vec<HeaderValue>,
    trace_id: TraceId,
}

/// Identifies a trace: 32 hex digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TraceId(u128);

impl TraceContext {
    /// The trace context in these headers; `None` if `traceparent` is missing, invalid or repeated. `tracestate` belongs to
    /// it, and is not parsed (section 3.3.1.1).
    pub(crate) fn read(headers: &HeaderMap) -> Option<Self> {
        let mut parents = headers.get_all(TRACEPARENT).iter();
        let parent = parents.next().filter(|_| parents.next().is_none())?;
        let trace_id = parse_parent(parent.as_bytes())?;
        Some(Self {
            parent: parent.clone(),
            state: headers.get_all(TRACESTATE).iter().cloned().collect(),
            trace_id,
        })
    }

    pub(crate) fn trace_id(&self) -> TraceId {
        self.trace_id
    }

    /// Writes it into the headers of a request that belongs to the same trace, in place of any that these have.
    pub(crate) fn write(self, headers: &mut HeaderMap) {
        headers.insert(TRACEPARENT, self.parent);
        headers.remove(TRACESTATE);
        for value in self.state {
            headers.append(TRACESTATE, value);
        }
    }
}

impl Display for TraceId {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// Whether a header is part of the trace context, which differs between requests that are otherwise equal.
pub(crate) fn is_trace_header(name: &HeaderName) -> bool {
    *name == TRACEPARENT || *name == TRACESTATE
}

/// Parses `version-traceid-parentid-flags` (section 3.2.2). A later version may append fields.
fn parse_parent(value: &[u8]) -> Option<TraceId> {
    let (known, rest) = value.split_at_checked(KNOWN_LENGTH)?;
    let mut fields = known.split(|&byte| byte == b'-');
    let version = hex(fields.next()?, 2)?;
    let trace_id = hex(fields.next()?, 32)?;
    let parent_id = hex(fields.next()?, 16)?;
    hex(fields.next()?, 2)?;
    let is_complete = match version {
        0 => rest.is_empty(),
        INVALID_VERSION => false,
        _ => rest.is_empty() || rest.starts_with(b"-"),
    };
    (is_complete && trace_id != 0 && parent_id != 0).then_some(TraceId(trace_id))
}

/// A number of exactly so many hex digits, in lower case.
fn hex(digits: &[u8], count: usize) -> Option<u128> {
    let is_valid = |digit: &u8| matches!(digit, b'0'..=b'9' | b'a'..=b'f');
    if digits.len() != count || !digits.iter().all(is_valid) {
        return None;
    }
    u128::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");
/// Bytes of version 00, with which each later version begins.
const KNOWN_LENGTH: usize = 55;
const INVALID_VERSION: u128 = 0xff;

#[cfg(test)]
mod tests {
    use super::*;

    /// The specification's own examples and rules.
    #[test]
    fn only_a_valid_traceparent_counts() {
        let valid = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let id = "4bf92f3577b34da6a3ce929d0e0e4736";
        for (value, expected) in [
            (valid, Some(id)),
            (&valid.replacen("00-", "cc-", 1), Some(id)),
            (&(valid.replacen("00-", "cc-", 1) + "-more"), Some(id)),
            (&(valid.replacen("00-", "cc-", 1) + ".more"), None),
            (&valid.replacen("00-", "ff-", 1), None),
            (&(valid.to_owned() + "-more"), None),
            (&valid.to_uppercase(), None),
            (&valid.replace(id, &"0".repeat(32)), None),
            (&valid.replace("00f067aa0ba902b7", &"0".repeat(16)), None),
            (&valid.replace("4bf9", "+bf9"), None),
            (&valid.replacen('-', "_", 1), None),
            (&valid[..54], None),
            ("", None),
        ] {
            let parsed = parse_parent(value.as_bytes()).map(|id| id.to_string());
            assert_eq!(parsed.as_deref(), expected, "{value}");
        }
    }

    #[test]
    fn repeated_traceparent_is_invalid() {
        let value =
            HeaderValue::from_static("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
        let mut headers = HeaderMap::new();
        headers.append(TRACEPARENT, value.clone());
        assert!(TraceContext::read(&headers).is_some());
        headers.append(TRACEPARENT, value);
        assert_eq!(TraceContext::read(&headers), None);
    }
}
