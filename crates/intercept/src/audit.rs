//! One line a request, at its end, and the numbers made of them.
//!
//! What a peer sent is escaped and capped; a query, which often carries secrets, is left out, as are all
//! headers and bodies.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use http::StatusCode;
use peername_observe::escape::escape_into;

use crate::authz::{How, Verdict};
use crate::http::client_connection::Client;
use crate::http::stall_monitor::Open;
use crate::request::id::Id;
use crate::state::metrics::Metrics;
use crate::request::target::Named;
use crate::request::refusal::Refusal;
use crate::upstream::{About, Failed, Fault};

/// What is known of a request so far. However it ends, it is counted and written once: when this is dropped.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) id: Id,
    metrics: Arc<Metrics>,
    pub(crate) client: Arc<Client>,
    /// As long as the client's connection is not idle because of it.
    open: Option<Open>,
    since: Instant,
    named: Option<Arc<Named>>,
    method: String,
    path: String,
    has_query: bool,
    decision: Decided,
    how: &'static str,
    reason: Option<Arc<str>>,
    check: Option<Duration>,
    status: Option<StatusCode>,
    code: Option<&'static str>,
    error: Option<String>,
    /// Octets of the request's body that the origin was sent.
    pub(crate) sent: Arc<Sending>,
    /// Octets of the answer's body that the client was sent.
    pub(crate) received: AtomicU64,
    upstream: Option<(Arc<About>, bool)>,
    /// Who was to answer and did not.
    tried: Option<SocketAddr>,
    to_answer: Option<Duration>,
    end: &'static str,
    /// Of a tunnel that has been opened: the exchanges that its client had begun by then.
    before: Option<u64>,
}

/// How far a request's body has come.
#[derive(Debug, Default)]
pub(crate) struct Sending {
    pub(crate) octets: AtomicU64,
    /// Whether the next octet is the client's to send.
    pub(crate) awaits_client: AtomicBool,
}

/// What became of a request, as `peername_intercept_requests_total` counts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Decided {
    /// The check agreed.
    Allowed,
    /// There is no check.
    Unchecked,
    /// The check refused.
    Denied,
    /// The check could not be asked, which refuses.
    CheckFailed,
    /// The check could not be asked, which the operator lets pass.
    FailedOpen,
    /// Our own rules refused, before or after the check.
    Refused,
    /// The client has left before there was a decision.
    Left,
}

/// The line of a record, at a level that tracing wants to know when it is compiled.
macro_rules! line {
    ($record:ident, $level:ident) => {{
        let (client, named) = (&$record.client, $record.named.as_deref());
        let upstream = $record.upstream.as_ref();
        tracing::$level!(
            target: TARGET,
            id = %$record.id,
            connection = %client.id,
            client = %client.client,
            peer = %client.peer,
            user = client.user().as_deref(),
            connect = named.and_then(|named| named.connect.as_ref()).map(tracing::field::display),
            sni = named.and_then(|named| named.sni.as_ref()).map(tracing::field::display),
            alpn = named.and_then(|named| named.alpn),
            tls = named.and_then(|named| named.tls_version),
            scheme = named.map(Named::scheme),
            host = named.map(|named| &*named.host),
            port = named.map(|named| named.to.port),
            method = %$record.method,
            path = %$record.path,
            query = $record.has_query,
            decision = $record.decision.label(),
            how = $record.how,
            reason = $record.reason.as_deref(),
            check_ms = $record.check.map(milliseconds),
            status = $record.status.map(|status| status.as_u16()),
            code = $record.code,
            error = $record.error.as_deref(),
            bytes_to_upstream = $record.sent.octets.load(Relaxed),
            bytes_to_downstream = $record.received.load(Relaxed),
            upstream = upstream.map(|(about, _)| about.addr).or($record.tried).map(tracing::field::display),
            upstream_tls = upstream.and_then(|(about, _)| about.tls),
            reused = upstream.map(|(_, reused)| *reused),
            answer_ms = $record.to_answer.map(milliseconds),
            duration_ms = milliseconds($record.since.elapsed()),
            end = $record.end,
            "request"
        );
    }};
}

impl Decided {
    /// Whether something was not let through: that is logged also with `-q`.
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

impl Record {
    pub(crate) fn begin(metrics: &Arc<Metrics>, client: &Arc<Client>, method: &str) -> Box<Self> {
        Box::new(Self {
            id: Id::next(),
            metrics: Arc::clone(metrics),
            client: Arc::clone(client),
            open: Some(Open::new(client)),
            since: Instant::now(),
            named: None,
            method: escaped(method, MOST_OF_A_METHOD),
            path: String::new(),
            has_query: false,
            decision: Decided::Left,
            how: "client",
            reason: None,
            check: None,
            status: None,
            code: None,
            error: None,
            sent: Arc::default(),
            received: AtomicU64::new(0),
            upstream: None,
            tried: None,
            to_answer: None,
            end: "cut",
            before: None,
        })
    }

    pub(crate) fn path(&mut self, uri: &http::Uri) {
        self.path = escaped(uri.path(), MOST_OF_A_PATH);
        self.has_query = uri.query().is_some();
    }

    pub(crate) fn is_of_head(&self) -> bool {
        self.method == http::Method::HEAD.as_str()
    }

    pub(crate) fn named(&mut self, named: &Arc<Named>) {
        self.named = Some(Arc::clone(named));
    }

    /// There is nobody to ask.
    pub(crate) fn unchecked(&mut self) {
        (self.decision, self.how) = (Decided::Unchecked, "no_check");
    }

    pub(crate) fn verdict(&mut self, verdict: &Verdict) {
        let allows = verdict.decision.allows();
        self.check = Some(verdict.took);
        let asked = if allows {
            Decided::Allowed
        } else {
            Decided::Denied
        };
        (self.decision, self.how) = match &verdict.how {
            How::Asked => (asked, "asked"),
            How::Cached => (asked, "cached"),
            How::Failed(failure) => (Decided::CheckFailed, failure.code()),
            How::FailedOpen(failure) => (Decided::FailedOpen, failure.code()),
        };
        if let crate::authz::Decision::Deny(denial) = &verdict.decision {
            self.reason = Some(Arc::clone(&denial.reason)).filter(|reason| !reason.is_empty());
        }
    }

    /// The check has said no to the tunnel that this request came through.
    pub(crate) fn denied(&mut self, failed: bool) {
        let denied = if failed {
            Decided::CheckFailed
        } else {
            Decided::Denied
        };
        (self.decision, self.how) = (denied, "connect");
    }

    /// The requests inside the tunnel have lines of their own. This one is written only if there have been none
    /// when it is dropped.
    pub(crate) fn leave_to_inner(&mut self, named: &Arc<Named>) {
        self.named(named);
        self.end = "unused";
        self.before = Some(self.client.exchanges.begun());
        self.open = None;
    }

    fn is_told(&self) -> bool {
        let used = |before| self.client.exchanges.begun() > before;
        self.before.is_some_and(used)
    }

    /// The client gets this instead of an answer.
    pub(crate) fn refused(&mut self, refusal: &Refusal) {
        if self.decision == Decided::Left {
            self.overruled();
        }
        self.status = Some(refusal.status);
        self.code = Some(refusal.code);
        self.error = Some(refusal.detail.clone());
    }

    /// The connection ends instead of an answer. `refusal` is for the log alone, with its hint.
    pub(crate) fn unanswered(&mut self, refusal: &Refusal) {
        if self.decision == Decided::Left || refusal.code == "too_many_certificates" {
            self.overruled();
        }
        self.code = Some(refusal.code);
        self.error = Some(match refusal.hint {
            "" => refusal.detail.clone(),
            hint => format!("{}; {hint}", refusal.detail),
        });
    }

    /// A destination that was refused is a decision; any other fault is the origin's or the way's.
    pub(crate) fn failed(&mut self, failed: &Failed) {
        self.tried = failed.tried;
        if matches!(failed.fault, Fault::Destination(..)) {
            self.overruled();
        }
    }

    /// A rule of ours refuses what the check may have allowed.
    pub(crate) fn overruled(&mut self) {
        (self.decision, self.how) = (Decided::Refused, "rule");
    }

    pub(crate) fn upstream(&mut self, about: Arc<About>, reused: bool) {
        self.upstream = Some((about, reused));
    }

    /// Where a tunnel leads.
    pub(crate) fn tunnelled(&mut self, about: Arc<About>) {
        self.upstream = Some((about, false));
        (self.to_answer, self.how) = (Some(self.since.elapsed()), "passthrough");
    }

    pub(crate) fn answered(&mut self, status: StatusCode) {
        self.status = Some(status);
        self.to_answer = Some(self.since.elapsed());
    }

    /// Everything arrived.
    pub(crate) fn complete(&mut self) {
        self.end = "complete";
    }

    pub(crate) fn cut_by_origin(&mut self) {
        self.end = "cut_by_origin";
    }

    /// Nothing moved for too long.
    pub(crate) fn idle(&mut self) {
        self.end = "idle";
    }

    /// Octets that have gone so far, in both directions.
    pub(crate) fn moved(&self) -> u64 {
        self.sent.octets.load(Relaxed) + self.received.load(Relaxed)
    }

    fn write(&self) {
        if self.decision.is_denial() {
            line!(self, warn);
        } else if tracing::enabled!(target: TARGET, tracing::Level::INFO) {
            line!(self, info);
        }
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        if self.is_told() {
            return;
        }
        self.metrics.request(self.decision);
        self.write();
    }
}

/// With a precision that means something.
fn milliseconds(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 100_000.0).round() / 100.0
}

/// Escaped for a log line, and cut.
fn escaped(text: &str, max_bytes: usize) -> String {
    let mut out = String::new();
    escape_into(&mut out, text.as_bytes(), max_bytes, b"");
    out
}

/// These lines and no others.
const TARGET: &str = "peername::audit";
const MOST_OF_A_METHOD: usize = 32;
const MOST_OF_A_PATH: usize = 1024;
