//! The audit log: one line per request, at its end.
//!
//! Plain data: the stages fill in an [`AuditRecord`], which is written once the request is over. Text from a peer is escaped
//! and capped; a query, which often carries secrets, is left out, as are all headers and bodies.

pub mod admission;
pub mod denials;
pub mod failures;
mod line;
pub mod otlp;
mod span;

use std::borrow::Cow;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use http::request::Parts;
use http::{HeaderValue, StatusCode, Version};
use peername_observe::escape::escape_into;
use peername_relay::Tally;
use rustls::ProtocolVersion;

use crate::request::client_info::ClientInfo;
use crate::request::id::Id;
use crate::request::refusal::Refusal;
use crate::request::remedy::Remedy;
use crate::request::target::RequestTarget;
use crate::request::trace_context::{SpanContext, TraceContext, TraceId};

/// What is known of a request so far.
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
    /// What has decided.
    pub(crate) how: &'static str,
    /// The reason that the check service gave for a denial.
    pub(crate) reason: Option<Arc<str>>,
    /// The rule of the access lists that matches; `None` if none does.
    pub(crate) rule: Option<Arc<str>>,
    /// The option that would allow what is denied.
    pub(crate) remedy: Option<Remedy>,
    /// The names of the headers that the proxy adds.
    pub(crate) injected: Option<String>,
    pub(crate) check_took: Option<Duration>,
    /// How much of the body the check service has seen.
    pub(crate) checked_body: Option<&'static str>,
    pub(crate) status: Option<StatusCode>,
    /// The code of the proxy's own error response.
    pub(crate) code: Option<&'static str>,
    pub(crate) error: Option<String>,
    /// What to do about the error; may be empty.
    pub(crate) hint: &'static str,
    /// The bytes of the request's body that were sent to the origin.
    pub(crate) sent: Arc<BodyProgress>,
    /// Bytes of the response's body that the client was sent.
    pub(crate) received: AtomicU64,
    pub(crate) upstream: Option<UpstreamFields>,
    pub(crate) origin: OriginContact,
    /// The address that was tried and gave no response.
    pub(crate) tried: Option<SocketAddr>,
    /// Whether the request was sent twice.
    pub(crate) retried: bool,
    /// Whether only the end of the connection ended the response, and the origin did not confirm it.
    pub(crate) lacks_close_notify: bool,
    pub(crate) time_to_response: Option<Duration>,
    pub(crate) end: ExchangeEnd,
}

/// How an exchange ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExchangeEnd {
    /// By the client, or within this proxy.
    Cut,
    /// As its protocol says.
    Complete,
    CutByOrigin,
    ClosedByAdmin,
    /// By an idle timeout.
    Idle,
    /// A tunnel through which no request came.
    Unused,
}

impl ExchangeEnd {
    /// The value in the audit line.
    fn label(self) -> &'static str {
        match self {
            Self::Cut => "cut",
            Self::Complete => "complete",
            Self::CutByOrigin => "cut_by_origin",
            Self::ClosedByAdmin => "closed_by_admin",
            Self::Idle => "idle",
            Self::Unused => "unused",
        }
    }
}

/// How far a request came to its origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OriginContact {
    /// It was not sent, or this proxy itself could open no connection.
    NotTried,
    /// No connection to the origin was ready for it: its name or address, its TLS, or the upstream proxy before it failed.
    NotReached,
    /// It was sent on a connection to the origin, with or without a response.
    Reached,
}

/// The connection to the origin that a request used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UpstreamFields {
    pub(crate) addr: SocketAddr,
    /// The protocol version, where it is TLS.
    pub(crate) tls: Option<&'static str>,
    /// Whether the connection had been used before.
    pub(crate) reused: bool,
}

/// How many bytes of a request's body were sent to the origin.
#[derive(Debug, Default)]
pub(crate) struct BodyProgress {
    pub(crate) bytes: AtomicU64,
    /// Whether the next byte is the client's to send.
    pub(crate) awaits_client: AtomicBool,
}

/// The final decision on a request, as `peername_intercept_requests_total` counts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum FinalDecision {
    /// The access lists and the check service allowed it, as far as they are configured.
    Allowed,
    /// Neither access lists nor a check service are configured.
    Unchecked,
    /// A rule of the access lists denied it, no rule allowed it, or the check service denied it.
    Denied,
    /// The check service gave no answer, which denies.
    CheckFailed,
    /// The check service gave no answer, and `--on-check-failure allow` lets the request pass.
    FailedOpen,
    /// A rule of the proxy refused it, before or after the check.
    Refused,
    /// The client closed the connection before there was a decision.
    Left,
}

impl FinalDecision {
    /// Whether the request was denied or refused; its line is logged even with `-q`.
    fn is_denial(self) -> bool {
        matches!(self, Self::Denied | Self::CheckFailed | Self::Refused)
    }

    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Unchecked => "unchecked",
            Self::Denied => "denied",
            Self::CheckFailed => "check_failed",
            Self::FailedOpen => "failed_open",
            Self::Refused => "refused",
            Self::Left => "left",
        }
    }
}

impl AuditRecord {
    pub(crate) fn new(client: Arc<ClientInfo>, method: &str) -> Self {
        Self {
            id: Id::next(),
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
            rule: None,
            remedy: None,
            injected: None,
            check_took: None,
            checked_body: None,
            status: None,
            code: None,
            error: None,
            hint: "",
            sent: Arc::default(),
            received: AtomicU64::new(0),
            upstream: None,
            origin: OriginContact::NotTried,
            tried: None,
            retried: false,
            lacks_close_notify: false,
            time_to_response: None,
            end: ExchangeEnd::Cut,
        }
    }

    pub(crate) fn set_uri(&mut self, uri: &http::Uri) {
        self.path = escape(uri.path(), MAX_PATH);
        self.has_query = uri.query().is_some();
    }

    /// Gives the request a span, in a trace of its own until its head names one.
    pub(crate) fn begin_span(&mut self) {
        self.span = SpanContext::new_root();
        self.trace_id = self.span.map(|span| span.trace_id);
    }

    /// Notes the head of the request, with the trace that it belongs to, if its headers name one.
    pub(crate) fn set_head(&mut self, head: &Parts) {
        self.set_uri(&head.uri);
        self.version = Some(head.version);
        if let Some(trace) = TraceContext::read(&head.headers) {
            self.trace_id = Some(trace.trace_id());
            self.span = self.span.and_then(|span| span.child_of(&trace));
        }
    }

    /// The `traceparent` of requests that are made for this one, if it has a span.
    pub(crate) fn traceparent(&self) -> Option<HeaderValue> {
        self.span.and_then(SpanContext::to_traceparent)
    }

    /// Whether the check service itself has decided, which may have spans below this request's.
    pub(crate) fn is_asked(&self) -> bool {
        self.how == ASKED
    }

    pub(crate) fn is_head_request(&self) -> bool {
        self.method == http::Method::HEAD.as_str()
    }

    /// Notes that nothing decides on requests.
    pub(crate) fn set_unchecked(&mut self) {
        self.set_decision(FinalDecision::Unchecked, "no_check");
    }

    pub(crate) fn set_decision(&mut self, decision: FinalDecision, how: &'static str) {
        (self.decision, self.how) = (decision, how);
    }

    /// Notes the reason that the check service gave for a denial; empty where it gave none.
    pub(crate) fn set_denial_reason(&mut self, reason: &Arc<str>) {
        self.reason = Some(Arc::clone(reason)).filter(|reason| !reason.is_empty());
    }

    /// Notes that the check denied the tunnel that this request came through.
    pub(crate) fn set_tunnel_denied(&mut self, failed: bool) {
        let denied = match failed {
            true => FinalDecision::CheckFailed,
            false => FinalDecision::Denied,
        };
        self.set_decision(denied, "connect");
    }

    /// Notes that the client gets this refusal instead of a response.
    pub(crate) fn set_refused(&mut self, refusal: &Refusal) {
        if self.decision == FinalDecision::Left {
            self.set_overruled();
        }
        self.status = Some(refusal.status);
        self.code = Some(refusal.code);
        self.error = Some(refusal.detail.clone());
        self.hint = refusal.hint;
    }

    /// Notes that the connection is closed without a response. `refusal` is for the log alone, with its hint.
    pub(crate) fn set_unanswered(&mut self, refusal: &Refusal) {
        if self.decision == FinalDecision::Left || refusal.code == "too_many_certificates" {
            self.set_overruled();
        }
        self.code = Some(refusal.code);
        self.error = Some(refusal.detail.clone());
        self.hint = refusal.hint;
    }

    /// The error as it is logged: with its hint where no response has told the client.
    fn logged_error(&self) -> Option<Cow<'_, str>> {
        match self.status {
            Some(_) => self.error.as_deref().map(Cow::Borrowed),
            None => self.error_with_hint(),
        }
    }

    fn error_with_hint(&self) -> Option<Cow<'_, str>> {
        let error = self.error.as_deref()?;
        Some(match self.hint {
            "" => Cow::Borrowed(error),
            hint => Cow::Owned(format!("{error}; {hint}")),
        })
    }

    /// Notes that a rule of the proxy refuses the request, even if the check allowed it.
    pub(crate) fn set_overruled(&mut self) {
        self.set_decision(FinalDecision::Refused, "rule");
    }

    /// Notes that bytes are relayed to this address as they are.
    pub(crate) fn set_tunnelled(&mut self, addr: SocketAddr, tls: Option<&'static str>) {
        self.set_upstream(UpstreamFields {
            addr,
            tls,
            reused: false,
        });
        (self.time_to_response, self.how) = (Some(self.started.elapsed()), "passthrough");
    }

    /// Notes the connection on which the request reached the origin.
    pub(crate) fn set_upstream(&mut self, upstream: UpstreamFields) {
        (self.upstream, self.origin) = (Some(upstream), OriginContact::Reached);
    }

    /// Notes the head of the response.
    pub(crate) fn set_status(&mut self, status: StatusCode) {
        self.status = Some(status);
        self.time_to_response = Some(self.started.elapsed());
    }

    /// Notes that the exchange was ended over the admin endpoint, unless it was over, with what its relay had moved.
    pub(crate) fn mark_closed_by_admin(&mut self, relayed: Tally) {
        if self.end == ExchangeEnd::Cut {
            self.end = ExchangeEnd::ClosedByAdmin;
            self.add_relayed(relayed);
        }
    }

    /// Adds what a relay has moved.
    pub(crate) fn add_relayed(&self, relayed: Tally) {
        self.sent.bytes.fetch_add(relayed.to_upstream, Relaxed);
        self.received.fetch_add(relayed.to_downstream, Relaxed);
    }

    /// Bytes of bodies moved so far, in both directions.
    pub(crate) fn bytes_moved(&self) -> u64 {
        self.sent.bytes.load(Relaxed) + self.received.load(Relaxed)
    }
}

/// Escapes what a peer sent for the line, and cuts it off behind `max_bytes`.
fn escape(text: &str, max_bytes: usize) -> String {
    let mut out = String::new();
    escape_into(&mut out, text.as_bytes(), max_bytes, b"");
    out
}

/// A protocol version as the audit line has it.
pub(crate) fn tls_version(version: ProtocolVersion) -> &'static str {
    match version {
        ProtocolVersion::TLSv1_3 => "1.3",
        ProtocolVersion::TLSv1_2 => "1.2",
        _ => "?",
    }
}

/// The tracing target of audit lines and no others.
pub const TARGET: &str = "peername::audit";
/// What has decided: the check service.
pub(crate) const ASKED: &str = "asked";
/// Bytes of a method in the line.
const MAX_METHOD: usize = 32;
/// Bytes of a path in the line.
const MAX_PATH: usize = 1024;
