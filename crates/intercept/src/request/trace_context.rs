//! Trace context of a request (W3C Trace Context, <https://www.w3.org/TR/trace-context/>): which trace it belongs to, and
//! its span in that trace.

use std::fmt::{self, Display, Formatter};

use http::header::{HeaderMap, HeaderName, HeaderValue};

/// Position of a request in a trace, as its `traceparent` and `tracestate` headers have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TraceContext {
    parent: HeaderValue,
    state: Vec<HeaderValue>,
    fields: Parent,
}

/// The fields of a `traceparent` header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Parent {
    trace_id: TraceId,
    span_id: SpanId,
    is_sampled: bool,
}

/// Identifies a trace: 32 hex digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TraceId(pub(crate) u128);

/// Identifies a span of a trace: 16 hex digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SpanId(pub(crate) u64);

/// The span of a request, if spans are exported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SpanContext {
    pub(crate) trace_id: TraceId,
    pub(crate) span_id: SpanId,
    /// The client's span; `None` at the root of a trace.
    pub(crate) parent_id: Option<SpanId>,
}

impl TraceContext {
    /// Reads the trace context in these headers; `None` if `traceparent` is missing, invalid or repeated. `tracestate` is kept
    /// unparsed (section 3.3.1.1).
    pub(crate) fn read(headers: &HeaderMap) -> Option<Self> {
        let mut parents = headers.get_all(TRACEPARENT).iter();
        let parent = parents.next().filter(|_| parents.next().is_none())?;
        let fields = parse_parent(parent.as_bytes())?;
        Some(Self {
            parent: parent.clone(),
            state: headers.get_all(TRACESTATE).iter().cloned().collect(),
            fields,
        })
    }

    /// A context with this `traceparent`, and the `tracestate` of these headers if they have a valid trace context.
    pub(crate) fn with_parent(parent: HeaderValue, headers: &HeaderMap) -> Option<Self> {
        let fields = parse_parent(parent.as_bytes())?;
        let state = Self::read(headers)
            .map(|trace| trace.state)
            .unwrap_or_default();
        Some(Self {
            parent,
            state,
            fields,
        })
    }

    pub(crate) fn trace_id(&self) -> TraceId {
        self.fields.trace_id
    }

    /// Replaces the trace context in these headers.
    pub(crate) fn write(self, headers: &mut HeaderMap) {
        headers.insert(TRACEPARENT, self.parent);
        headers.remove(TRACESTATE);
        for value in self.state {
            headers.append(TRACESTATE, value);
        }
    }
}

impl SpanContext {
    /// The root span of a new trace; `None` if the system has no random numbers.
    pub(crate) fn new_root() -> Option<Self> {
        let mut bytes = [0; 24];
        aws_lc_rs::rand::fill(&mut bytes).ok()?;
        let (trace_id, span_id) = bytes.split_at(16);
        Some(Self {
            trace_id: TraceId(u128::from_ne_bytes(trace_id.try_into().ok()?)),
            span_id: SpanId(u64::from_ne_bytes(span_id.try_into().ok()?)),
            parent_id: None,
        })
    }

    /// This span as a child of the client's span; `None` if the client's trace is not sampled, as with the default sampler of
    /// OpenTelemetry's SDKs (`parentbased_always_on`).
    pub(crate) fn child_of(self, trace: &TraceContext) -> Option<Self> {
        let Parent {
            trace_id,
            span_id,
            is_sampled,
        } = trace.fields;
        is_sampled.then_some(Self {
            trace_id,
            parent_id: Some(span_id),
            ..self
        })
    }

    /// The `traceparent` of a request that is made for this span.
    pub(crate) fn to_traceparent(self) -> Option<HeaderValue> {
        let Self {
            trace_id, span_id, ..
        } = self;
        HeaderValue::from_str(&format!("00-{trace_id}-{span_id}-01")).ok()
    }
}

impl Display for SpanId {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
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
fn parse_parent(value: &[u8]) -> Option<Parent> {
    let (known, rest) = value.split_at_checked(KNOWN_LENGTH)?;
    let mut fields = known.split(|&byte| byte == b'-');
    let version = hex(fields.next()?, 2)?;
    let trace_id = hex(fields.next()?, 32)?;
    let span_id = u64::try_from(hex(fields.next()?, 16)?).ok()?;
    let flags = hex(fields.next()?, 2)?;
    let is_complete = match version {
        0 => rest.is_empty(),
        INVALID_VERSION => false,
        _ => rest.is_empty() || rest.starts_with(b"-"),
    };
    (is_complete && trace_id != 0 && span_id != 0).then_some(Parent {
        trace_id: TraceId(trace_id),
        span_id: SpanId(span_id),
        is_sampled: flags & SAMPLED != 0,
    })
}

/// Parses exactly `count` hex digits, in lower case.
fn hex(digits: &[u8], count: usize) -> Option<u128> {
    let is_lower_hex = |digit: &u8| matches!(digit, b'0'..=b'9' | b'a'..=b'f');
    if digits.len() != count || !digits.iter().all(is_lower_hex) {
        return None;
    }
    u128::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");
/// Bytes of a version 00 header. Later versions begin with the same fields.
const KNOWN_LENGTH: usize = 55;
const INVALID_VERSION: u128 = 0xff;
/// The flag that the caller may have recorded the trace (section 3.2.2.5.1).
const SAMPLED: u128 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    /// The specification's own examples and rules.
    #[test]
    fn invalid_traceparent_is_ignored() {
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
            let parsed = parse_parent(value.as_bytes()).map(|parent| parent.trace_id.to_string());
            assert_eq!(parsed.as_deref(), expected, "{value}");
        }
    }

    #[test]
    fn span_is_a_child_of_the_clients_span_if_the_trace_is_sampled() {
        let root = SpanContext::new_root().unwrap();
        assert_ne!(root, SpanContext::new_root().unwrap());
        for (flags, is_sampled) in [("01", true), ("00", false), ("03", true), ("02", false)] {
            let parent = format!("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-{flags}");
            let mut headers = HeaderMap::new();
            headers.insert(TRACEPARENT, parent.parse().unwrap());
            headers.insert(TRACESTATE, HeaderValue::from_static("vendor=1"));
            let trace = TraceContext::read(&headers).unwrap();
            let Some(span) = root.child_of(&trace) else {
                assert!(!is_sampled, "{flags}");
                continue;
            };
            assert!(is_sampled, "{flags}");
            assert_eq!(span.trace_id, trace.trace_id());
            assert_eq!(span.parent_id, Some(SpanId(0x00f0_67aa_0ba9_02b7)));
            let sent = span.to_traceparent().unwrap();
            let sent = TraceContext::with_parent(sent, &headers).unwrap();
            assert_eq!(sent.trace_id(), trace.trace_id());
            assert_eq!(sent.fields.span_id, root.span_id);
            assert_eq!(sent.state, trace.state);
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
