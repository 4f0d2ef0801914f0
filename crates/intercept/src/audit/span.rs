//! The span of a request, by OpenTelemetry's semantic conventions for HTTP servers
//! (<https://opentelemetry.io/docs/specs/semconv/http/http-spans/>), with the fields of the audit line.

use std::fmt::Display;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::Version;

use super::otlp::SpanQueue;
use super::otlp::messages::{
    FLAG_SAMPLED, FLAGS_REMOTE_PARENT, KIND_SERVER, KeyValue, STATUS_ERROR, Span, Status, Value,
};
use super::record::{milliseconds, with_fields};
use super::{AuditRecord, ExchangeEnd};
use crate::request::trace_context::SpanContext;

/// Adds the fields that both the line and the span have.
macro_rules! add_attributes {
    ($attributes:ident; $($outputs:ident $kind:ident $name:ident = $value:expr;)*) => {
        $(add_attribute!($attributes, $outputs $kind $name, $value);)*
    };
}

macro_rules! add_attribute {
    ($attributes:ident, line $kind:ident $name:ident, $value:expr) => {};
    ($attributes:ident, both $kind:ident $name:ident, $value:expr) => {
        $attributes.$kind(concat!("peername.", stringify!($name)), $value)
    };
}

impl AuditRecord {
    /// Queues the span of the request, if it has one.
    pub(crate) fn export(&self, spans: &SpanQueue) {
        if let Some(context) = self.span {
            spans.push(self.to_span(context, SystemTime::now()));
        }
    }

    fn to_span(&self, context: SpanContext, end: SystemTime) -> Span {
        let method = known_method(&self.method);
        let error_type = self.error_type();
        let parent = context.parent_id;
        Span {
            trace_id: context.trace_id.0.to_be_bytes().to_vec(),
            span_id: context.span_id.0.to_be_bytes().to_vec(),
            parent_span_id: parent.map_or_else(Vec::new, |parent| parent.0.to_be_bytes().to_vec()),
            name: method.unwrap_or("HTTP").to_owned(),
            kind: KIND_SERVER,
            start_time_unix_nano: unix_nanoseconds(end - self.started.elapsed()),
            end_time_unix_nano: unix_nanoseconds(end),
            attributes: self.attributes(method, error_type.as_deref()),
            status: error_type.map(|_| Status {
                message: self.logged_error().unwrap_or_default().into_owned(),
                code: STATUS_ERROR,
            }),
            flags: FLAG_SAMPLED | parent.map_or(0, |_| FLAGS_REMOTE_PARENT),
        }
    }

    /// The attributes of the semantic conventions, then the fields of the audit line for which these have none, under their names
    /// in the line.
    fn attributes(&self, method: Option<&'static str>, error_type: Option<&str>) -> Vec<KeyValue> {
        let mut attributes = Attributes(Vec::new());
        let (client, target) = (&self.client, self.target.as_deref());
        attributes.text("http.request.method", Some(method.unwrap_or("_OTHER")));
        let original = Some(&*self.method).filter(|text| method.is_none() && !text.is_empty());
        attributes.text("http.request.method_original", original);
        attributes.text("url.scheme", self.scheme());
        attributes.text(
            "url.path",
            Some(&*self.path).filter(|path| !path.is_empty()),
        );
        attributes.text("server.address", target.map(|target| &*target.host));
        attributes.int("server.port", target.map(|target| target.to.port));
        attributes.int(
            "http.response.status_code",
            self.status.map(|status| status.as_u16()),
        );
        attributes.text("client.address", Some(client.addr.ip()));
        attributes.int("client.port", Some(client.addr.port()));
        attributes.text("network.peer.address", Some(client.peer.0.ip()));
        attributes.int("network.peer.port", Some(client.peer.0.port()));
        attributes.text("network.protocol.version", self.version.and_then(version));
        attributes.text("error.type", error_type);
        with_fields!(self, add_attributes!(attributes));
        attributes.0
    }

    /// The error of the proxy or the origin: no response, a 5xx, or a response that broke off. A denial is not an error,
    /// because the proxy did its task.
    fn error_type(&self) -> Option<String> {
        match self.status {
            Some(status) if status.is_server_error() => {
                let code = self.code.map(str::to_owned);
                Some(code.unwrap_or_else(|| status.as_str().to_owned()))
            }
            None => self.code.map(str::to_owned),
            Some(_) => matches!(self.end, ExchangeEnd::CutByOrigin | ExchangeEnd::Idle)
                .then(|| self.end.label().to_owned()),
        }
    }
}

struct Attributes(Vec<KeyValue>);

impl Attributes {
    fn text(&mut self, key: &str, value: Option<impl Display>) {
        self.add(key, value.map(|value| Value::String(value.to_string())));
    }

    fn display(&mut self, key: &str, value: Option<impl Display>) {
        self.text(key, value);
    }

    /// Adds an integer, unless an i64 can't hold it.
    fn int(&mut self, key: &str, value: Option<impl TryInto<i64>>) {
        let value = value.and_then(|value| value.try_into().ok());
        self.add(key, value.map(Value::Int));
    }

    fn flag(&mut self, key: &str, value: Option<bool>) {
        self.add(key, value.map(Value::Bool));
    }

    fn time(&mut self, key: &str, value: Option<Duration>) {
        self.add(key, value.map(|value| Value::Double(milliseconds(value))));
    }

    fn add(&mut self, key: &str, value: Option<Value>) {
        if let Some(value) = value {
            self.0.push(KeyValue::new(key, value));
        }
    }
}

/// The method, if the conventions allow it in a span's name (RFC 9110 and RFC 5789).
fn known_method(method: &str) -> Option<&'static str> {
    METHODS.into_iter().find(|known| *known == method)
}

fn version(version: Version) -> Option<&'static str> {
    match version {
        Version::HTTP_10 => Some("1.0"),
        Version::HTTP_11 => Some("1.1"),
        Version::HTTP_2 => Some("2"),
        _ => None,
    }
}

fn unix_nanoseconds(time: SystemTime) -> u64 {
    let since_epoch = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_epoch.as_nanos()).unwrap_or(u64::MAX)
}

const METHODS: [&str; 9] = [
    "CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE",
];
