//! The record of a request, the table of its fields, and the audit line that is written from the table. The
//! [span](super::span) is made from it, too.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use http::{StatusCode, Version};
use peername_server::addr::PeerAddr;

use super::fields::{ExchangeEnd, FinalDecision, MAX_METHOD, OriginContact, TARGET, escape};
use crate::host::HostPort;
use crate::request::client_info::ClientInfo;
use crate::request::id::Id;
use crate::request::refusal::RefusalKind;
use crate::request::remedy::Remedy;
use crate::request::target::RequestTarget;
use crate::request::trace_context::{SpanContext, TraceId};
use crate::upstream::request_body::SendProgress;

/// The record of a request, as far as the request has come.
#[derive(Debug)]
pub(crate) struct AuditRecord {
    pub(crate) id: Id,
    pub(crate) client: Arc<ClientInfo>,
    pub(crate) started: Instant,
    pub(crate) target: Option<Arc<RequestTarget>>,
    pub(crate) trace_id: Option<TraceId>,
    pub(crate) span: Option<SpanContext>,
    pub(crate) version: Option<Version>,
    /// Escaped and capped.
    pub(crate) method: String,
    /// Escaped and capped.
    pub(crate) path: String,
    pub(crate) has_query: bool,
    pub(crate) decision: FinalDecision,
    /// What has made the decision (the access lists, an approver, the check service or its cache), or why it could not be made.
    pub(crate) how: &'static str,
    /// The reason of a denial by the access lists, the approver or the check service.
    pub(crate) reason: Option<Arc<str>>,
    /// The user of `--proxy-auth` who sent the request, or opened its tunnel.
    pub(crate) user: Option<Arc<str>>,
    /// The name with a password that `--proxy-auth` does not accept. Escaped and capped.
    pub(crate) tried_user: Option<String>,
    pub(super) is_unauthenticated: bool,
    /// Whether the request has a password, right or wrong.
    pub(super) has_credentials: bool,
    /// The rule of the access lists that matches; `None` if none does.
    pub(crate) rule: Option<Arc<str>>,
    /// The option that would allow the denied request.
    pub(crate) remedy: Option<Remedy>,
    /// The names of the headers that the proxy adds.
    pub(crate) injected: Option<String>,
    pub(crate) check_took: Option<Duration>,
    /// How much of the body was sent to the check service: `partial`, `whole`, or `exempt` (nothing, because of its type).
    pub(crate) checked_body: Option<&'static str>,
    pub(crate) status: Option<StatusCode>,
    /// The code of the proxy's own error response.
    pub(crate) code: Option<&'static str>,
    /// What the refusal is about, if the request was refused.
    pub(super) refusal_kind: RefusalKind,
    pub(crate) error: Option<String>,
    /// What to do about the error; may be empty.
    pub(crate) hint: &'static str,
    /// How far the request was sent to its origin.
    pub(crate) to_upstream: Arc<SendProgress>,
    /// The bytes of the response's body that were sent to the client.
    pub(crate) to_downstream: AtomicU64,
    /// The connection on which the request reached its origin.
    pub(crate) upstream: Option<UpstreamFields>,
    /// Whether that connection had been used before.
    pub(crate) reused: Option<bool>,
    pub(crate) origin: OriginContact,
    /// Whether the response ended with its connection, and without close_notify: it may be truncated.
    pub(crate) lacks_close_notify: bool,
    pub(crate) time_to_response: Option<Duration>,
    pub(crate) end: ExchangeEnd,
}

/// A connection to the origin.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UpstreamFields {
    pub(crate) addr: SocketAddr,
    /// The protocol version of TLS; `None` without TLS.
    pub(crate) tls: Option<&'static str>,
}

/// Calls a macro with a row for each field of a record, in the order of the audit line: its outputs, the kind of its value,
/// its name, and its value as an `Option`.
///
/// The outputs `both` are a field of the line and the attribute `peername.NAME` of the span. The output `line` is a field of the
/// line only: OpenTelemetry's conventions have an attribute for it, or another part of the span has it.
macro_rules! with_fields {
    ($record:ident, $call:ident!($($context:tt)*)) => {{
        use std::sync::atomic::Ordering::Relaxed;
        let (client, target) = (&$record.client, $record.target.as_deref());
        let upstream = $record.upstream;
        let tried = *$record.to_upstream.tried.lock();
        $call! { $($context)*;
            both display id = Some($record.id);
            both display connection = Some(&client.text.id);
            line display trace_id = $record.trace_id;
            line display span_id = $record.span.map(|span| span.span_id);
            line display client = Some(&client.text.addr);
            line display peer = Some(&client.text.peer);
            both text user = $record.user.as_deref();
            both text tried_user = $record.tried_user.as_deref();
            both display connect = target.and_then(|target| target.connect.as_ref());
            both display sni = target.and_then(|target| target.sni.as_ref());
            both text alpn = target.and_then(|target| target.alpn);
            both text tls = target.and_then(|target| target.tls_version);
            line text scheme = $record.scheme();
            line text host = target.map(|target| &*target.host);
            line int port = target.map(|target| target.to.port);
            line display method = Some(&$record.method);
            line display path = Some(&$record.path);
            both flag query = Some($record.has_query);
            both text decision = Some($record.decision.label());
            both text how = Some($record.how);
            both text rule = $record.rule.as_deref();
            both text reason = $record.reason.as_deref();
            both text injected = $record.injected.as_deref();
            both time check_ms = $record.check_took;
            both text check_body = $record.checked_body;
            line int status = $record.status.map(|status| status.as_u16());
            both text code = $record.code;
            both text error = $record.logged_error().as_deref();
            both int bytes_to_upstream = Some($record.to_upstream.bytes.load(Relaxed));
            both int bytes_to_downstream = Some($record.to_downstream.load(Relaxed));
            both display upstream = upstream.map(|upstream| upstream.addr).or(tried);
            both text upstream_tls = upstream.and_then(|upstream| upstream.tls);
            both flag reused = $record.reused;
            both flag retried = $record.to_upstream.retried.load(Relaxed).then_some(true);
            both time answer_ms = $record.time_to_response;
            line time duration_ms = Some($record.started.elapsed());
            both text end = Some($record.end.label());
            both flag close_notify = $record.lacks_close_notify.then_some(false);
        }
    }};
}
pub(super) use with_fields;

/// Emits the line at a level. This is a macro because the level of a tracing event has to be a constant.
macro_rules! emit {
    ($level:ident; $($outputs:ident $kind:ident $name:ident = $value:expr;)*) => {
        tracing::$level!(target: TARGET, $($name = field_value!($kind, $value),)* "request")
    };
}

macro_rules! field_value {
    (display, $value:expr) => {
        $value.map(tracing::field::display)
    };
    (time, $value:expr) => {
        $value.map(milliseconds)
    };
    ($kind:ident, $value:expr) => {
        $value
    };
}

impl AuditRecord {
    pub(crate) fn new(client: Arc<ClientInfo>, method: &str) -> Self {
        Self {
            id: Id::next(),
            user: client.tunnel_user(),
            client,
            started: Instant::now(),
            target: None,
            trace_id: None,
            span: None,
            version: None,
            method: escape(method, MAX_METHOD),
            path: String::new(),
            has_query: false,
            decision: FinalDecision::Left,
            how: "client",
            reason: None,
            is_unauthenticated: false,
            has_credentials: false,
            tried_user: None,
            rule: None,
            remedy: None,
            injected: None,
            check_took: None,
            checked_body: None,
            status: None,
            code: None,
            refusal_kind: RefusalKind::default(),
            error: None,
            hint: "",
            to_upstream: Arc::default(),
            to_downstream: AtomicU64::new(0),
            upstream: None,
            reused: None,
            origin: OriginContact::NotTried,
            lacks_close_notify: false,
            time_to_response: None,
            end: ExchangeEnd::Cut,
        }
    }

    /// The record of a connection of a jailed program to this destination, of which no socket exists.
    pub(crate) fn without_connection(to: HostPort) -> Self {
        let program = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let client = ClientInfo::new(Id::next(), PeerAddr(program), program);
        let mut record = Self::new(Arc::new(client), "CONNECT");
        record.target = Some(Arc::new(RequestTarget::plain(to)));
        record
    }

    /// Writes the line.
    pub(crate) fn write(&self) {
        if self.decision.is_denial() && !self.is_challenge() {
            with_fields!(self, emit!(warn));
        } else if tracing::enabled!(target: TARGET, tracing::Level::INFO) {
            with_fields!(self, emit!(info));
        }
    }
}

/// Milliseconds, rounded to 10 µs: further digits are noise.
pub(super) fn milliseconds(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 100_000.0).round() / 100.0
}
