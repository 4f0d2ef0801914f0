//! Writes the audit line of a record.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::{AuditRecord, TARGET};

/// Emits the line at a level. This is a macro because the level of a tracing event has to be a constant.
macro_rules! line {
    ($record:ident, $level:ident) => {{
        let (client, target) = (&$record.client, $record.target.as_deref());
        let upstream = $record.upstream;
        tracing::$level!(
            target: TARGET,
            id = %$record.id,
            connection = %client.text.id,
            trace_id = $record.trace_id.map(tracing::field::display),
            span_id = $record.span.map(|span| tracing::field::display(span.span_id)),
            client = %client.text.addr,
            peer = %client.text.peer,
            user = $record.user().as_deref(),
            tried_user = $record.tried_user.as_deref(),
            connect = target.and_then(|target| target.connect.as_ref()).map(tracing::field::display),
            sni = target.and_then(|target| target.sni.as_ref()).map(tracing::field::display),
            alpn = target.and_then(|target| target.alpn),
            tls = target.and_then(|target| target.tls_version),
            scheme = $record.scheme(),
            host = target.map(|target| &*target.host),
            port = target.map(|target| target.to.port),
            method = %$record.method,
            path = %$record.path,
            query = $record.has_query,
            decision = $record.decision.label(),
            how = $record.how,
            rule = $record.rule.as_deref(),
            reason = $record.reason.as_deref(),
            injected = $record.injected.as_deref(),
            check_ms = $record.check_took.map(milliseconds),
            check_body = $record.checked_body,
            status = $record.status.map(|status| status.as_u16()),
            code = $record.code,
            error = $record.logged_error().as_deref(),
            bytes_to_upstream = $record.to_upstream.bytes.load(Relaxed),
            bytes_to_downstream = $record.to_downstream.load(Relaxed),
            upstream = upstream.map(|upstream| upstream.addr).or($record.tried).map(tracing::field::display),
            upstream_tls = upstream.and_then(|upstream| upstream.tls),
            reused = upstream.map(|upstream| upstream.reused),
            retried = $record.retried.then_some(true),
            answer_ms = $record.time_to_response.map(milliseconds),
            duration_ms = milliseconds($record.started.elapsed()),
            end = $record.end.label(),
            close_notify = $record.lacks_close_notify.then_some(false),
            "request"
        );
    }};
}

impl AuditRecord {
    /// Writes the line.
    pub(crate) fn write(&self) {
        if self.decision.is_denial() && !self.is_challenge() {
            line!(self, warn);
        } else if tracing::enabled!(target: TARGET, tracing::Level::INFO) {
            line!(self, info);
        }
    }
}

/// Milliseconds, rounded to 10 µs: further digits are noise.
pub(super) fn milliseconds(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 100_000.0).round() / 100.0
}
