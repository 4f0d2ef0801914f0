//! The audit log: one line per request, written at the end of the request.
//!
//! The stages of a request fill in its [`AuditRecord`]. Text from a peer is escaped and capped. Queries are left out, because
//! they often carry secrets, as are all headers and bodies.

pub mod admission;
pub mod denials;
pub mod failures;
mod fields;
pub mod otlp;
mod record;
mod span;

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use http::header::PROXY_AUTHORIZATION;
use http::request::Parts;
use http::{HeaderValue, StatusCode};
use peername_relay::Tally;
use rustls::ProtocolVersion;

use crate::request::refusal::{Refusal, RefusalKind};
use crate::request::trace_context::{SpanContext, TraceContext};
pub use fields::TARGET;
use fields::escape;
pub(crate) use fields::{ExchangeEnd, FinalDecision, OriginContact};
pub(crate) use record::{AuditRecord, UpstreamFields};

impl AuditRecord {
    pub(crate) fn set_uri(&mut self, uri: &http::Uri) {
        self.path = escape(uri.path(), MAX_PATH);
        self.has_query = uri.query().is_some();
    }

    /// Records that the request has no valid password, and the name that came with a wrong one.
    pub(crate) fn set_unauthenticated(&mut self, tried: Option<&str>) {
        self.is_unauthenticated = true;
        self.tried_user = tried.map(|name| escape(name, MAX_USER));
    }

    /// Whether the request is refused for want of a password alone: clients send it only when it is asked for (RFC 9110, section
    /// 11.7.1).
    fn is_challenge(&self) -> bool {
        self.is_unauthenticated && !self.has_credentials
    }

    /// Begins a span, in a new trace. [`set_head`](Self::set_head) moves the span to the trace that the request names.
    pub(crate) fn begin_span(&mut self) {
        self.span = SpanContext::new_root();
        self.trace_id = self.span.map(|span| span.trace_id);
    }

    /// Records the head of the request, and the trace that its headers name.
    pub(crate) fn set_head(&mut self, head: &Parts) {
        self.set_uri(&head.uri);
        self.version = Some(head.version);
        self.has_credentials = head.headers.contains_key(PROXY_AUTHORIZATION);
        if let Some(trace) = TraceContext::read(&head.headers) {
            self.trace_id = Some(trace.trace_id());
            self.span = self.span.and_then(|span| span.child_of(&trace));
        }
    }

    /// The `traceparent` for requests that the proxy makes because of this one, if this one has a span.
    pub(crate) fn traceparent(&self) -> Option<HeaderValue> {
        self.span.and_then(SpanContext::to_traceparent)
    }

    /// Whether the check service itself has decided. If so, it may have made child spans of this request's span.
    pub(crate) fn is_asked(&self) -> bool {
        self.how == ASKED
    }

    pub(crate) fn set_decision(&mut self, decision: FinalDecision, how: &'static str) {
        (self.decision, self.how) = (decision, how);
    }

    /// Records the reason of a denial; empty if there is none.
    pub(crate) fn set_denial_reason(&mut self, reason: &Arc<str>) {
        self.reason = Some(Arc::clone(reason)).filter(|reason| !reason.is_empty());
    }

    /// Records that the tunnel of this request was denied, or that its check failed.
    pub(crate) fn set_tunnel_denied(&mut self, check_failed: bool) {
        let decision = match check_failed {
            true => FinalDecision::CheckFailed,
            false => FinalDecision::Denied,
        };
        self.set_decision(decision, "connect");
    }

    /// Records that the client gets this refusal as its response.
    pub(crate) fn set_refused(&mut self, refusal: &Refusal) {
        if self.decision == FinalDecision::Left {
            self.set_refused_by_rule();
        }
        self.status = Some(refusal.status);
        self.set_refusal(refusal);
    }

    /// Records that the connection is closed without a response. `refusal` and its hint are for the log only.
    pub(crate) fn set_unanswered(&mut self, refusal: &Refusal) {
        // The rate limit of certificates also refuses tunnels that the check has allowed.
        if self.decision == FinalDecision::Left || refusal.kind == RefusalKind::RateLimit {
            self.set_refused_by_rule();
        }
        self.set_refusal(refusal);
    }

    fn set_refusal(&mut self, refusal: &Refusal) {
        self.refusal_kind = refusal.kind;
        self.code = Some(refusal.code);
        self.error = Some(refusal.detail.clone());
        self.hint = refusal.hint;
    }

    /// The error for the log. The hint is added only if the client got no response: a response has the hint.
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

    /// Records that a rule of the proxy refuses the request, even if the check allowed it. A denial stays one.
    pub(crate) fn set_refused_by_rule(&mut self) {
        if !matches!(
            self.decision,
            FinalDecision::Denied | FinalDecision::CheckFailed
        ) {
            self.set_decision(FinalDecision::Refused, "rule");
        }
    }

    /// Whether the policy has decided on the request, or its destination is refused. A request that is refused for its form, or
    /// by the rate limit of certificates, has no decision.
    pub(crate) fn has_decision(&self) -> bool {
        match self.decision {
            FinalDecision::Left => false,
            FinalDecision::Refused => {
                let is_of_destination = matches!(
                    self.refusal_kind,
                    RefusalKind::Destination | RefusalKind::ClosedPort
                );
                is_of_destination || self.remedy.is_some()
            }
            _ => true,
        }
    }

    /// Records that the proxy cuts the connection, if there is no decision yet. An unused tunnel has nothing to decide on.
    pub(crate) fn set_cut_by_drain(&mut self) {
        if self.decision == FinalDecision::Left && self.end == ExchangeEnd::Cut {
            self.how = DRAIN;
        }
    }

    /// Whether the proxy has cut the connection before there was a decision.
    fn is_cut_undecided(&self) -> bool {
        self.how == DRAIN
    }

    /// Records that the tunnel is relayed unopened on this connection.
    pub(crate) fn set_tunnelled(&mut self, upstream: UpstreamFields) {
        self.set_upstream(upstream, false);
        self.time_to_response = Some(self.started.elapsed());
        // An approved tunnel has no rule in its line: only how it was approved tells why it was allowed.
        if ![TERMINAL, LEARNED].contains(&self.how) {
            self.how = "passthrough";
        }
    }

    /// Records the connection on which the request reached the origin.
    pub(crate) fn set_upstream(&mut self, upstream: UpstreamFields, reused: bool) {
        self.upstream = Some(upstream);
        self.reused = Some(reused);
        self.origin = OriginContact::Reached;
    }

    /// Records the status and the time of the response.
    pub(crate) fn set_status(&mut self, status: StatusCode) {
        self.status = Some(status);
        self.time_to_response = Some(self.started.elapsed());
    }

    /// Records that the response has ended, and that nothing more of the request is to be sent.
    pub(crate) fn set_complete(&mut self) {
        self.end = match self.to_upstream.is_cut.load(Relaxed) {
            true => ExchangeEnd::Cut,
            false => ExchangeEnd::Complete,
        };
    }

    /// Records that the admin endpoint ended the exchange, and adds the bytes of its relay, unless the exchange was over
    /// before.
    pub(crate) fn mark_closed_by_admin(&mut self, relayed: Tally) {
        if self.end == ExchangeEnd::Cut {
            self.end = ExchangeEnd::ClosedByAdmin;
            self.add_relayed(relayed);
        }
    }

    /// Adds the bytes of a relay.
    pub(crate) fn add_relayed(&self, relayed: Tally) {
        self.to_upstream
            .bytes
            .fetch_add(relayed.to_upstream, Relaxed);
        self.to_downstream.fetch_add(relayed.to_downstream, Relaxed);
    }

    /// The scheme of the request. A CONNECT has none; its connection has `https` once its ClientHello has come.
    fn scheme(&self) -> Option<&'static str> {
        let target = self.target.as_ref()?;
        (target.is_tls || self.method != http::Method::CONNECT.as_str()).then(|| target.scheme())
    }

    /// The bytes of both bodies so far.
    pub(crate) fn bytes_moved(&self) -> u64 {
        self.to_upstream.bytes.load(Relaxed) + self.to_downstream.load(Relaxed)
    }
}

/// A protocol version as the audit line has it.
pub(crate) fn tls_version(version: ProtocolVersion) -> &'static str {
    match version {
        ProtocolVersion::TLSv1_3 => "1.3",
        ProtocolVersion::TLSv1_2 => "1.2",
        _ => "?",
    }
}

/// How the decision was made: by asking the check service.
pub(crate) const ASKED: &str = "asked";
/// How the decision was made: by the access lists.
pub(crate) const LIST: &str = "list";
/// How the decision was made: by a person, who was asked on the terminal.
pub const TERMINAL: &str = "terminal";
/// How the decision was made: by a run that learns rules.
pub const LEARNED: &str = "learned";
/// Why there is no decision: the program of a jail has exited, and its last connections are cut.
const DRAIN: &str = "drain";
/// The maximum number of bytes of a tried name in the line.
const MAX_USER: usize = 64;
/// The maximum number of bytes of a path in the line.
const MAX_PATH: usize = 1024;
