//! The table of a record's fields, and the audit line that is written from it. The [span](super::span) is made from it, too.

use std::time::Duration;

use super::{AuditRecord, TARGET};

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
            both flag reused = upstream.map(|upstream| upstream.reused);
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
