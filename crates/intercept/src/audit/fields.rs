//! What the fields of the record hold.

use peername_observe::escape::escape_into;

/// How an exchange ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExchangeEnd {
    /// The client or this proxy ended it early. The value until another end is recorded.
    Cut,
    /// It ended as its protocol demands.
    Complete,
    CutByOrigin,
    ClosedByAdmin,
    /// An idle timeout ended it.
    Idle,
    /// It was a tunnel, through which no request came.
    Unused,
}

impl ExchangeEnd {
    /// The value in the audit line.
    pub(super) fn label(self) -> &'static str {
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

/// Whether a request reached its origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OriginContact {
    /// No: the request was not to be sent, or this proxy itself could not open a connection.
    NotTried,
    /// No: the origin's name, address or TLS failed, or the upstream proxy on the path.
    NotReached,
    /// Yes: the request was sent on a connection to the origin, with or without a response.
    Reached,
}

/// The final decision on a request, as `peername_intercept_requests_total` counts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum FinalDecision {
    /// The access lists, the approver and the check service allowed the request, as far as they are configured.
    Allowed,
    /// Neither access lists nor a check service are configured.
    Unchecked,
    /// A rule of the access lists denied the request, no rule allowed it, or the approver or the check service denied it.
    Denied,
    /// The check failed, which denies the request.
    CheckFailed,
    /// The check failed, and `--on-check-failure allow` lets the request pass.
    FailedOpen,
    /// A rule of the proxy itself refused the request, before or after the check.
    Refused,
    /// The client closed the connection, or a jail's drain has cut it, before there was a decision. The value until another
    /// decision is recorded.
    Left,
}

impl FinalDecision {
    /// Whether the request was denied or refused; its line is logged even with `-q`.
    pub(super) fn is_denial(self) -> bool {
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

/// Escapes a peer's text for the audit line, and caps it at `max_bytes`.
pub(super) fn escape(text: &str, max_bytes: usize) -> String {
    let mut out = String::new();
    escape_into(&mut out, text.as_bytes(), max_bytes, b"");
    out
}

/// The tracing target of audit lines and no others.
pub const TARGET: &str = "peername::audit";
/// The maximum number of bytes of a method in the line.
pub(super) const MAX_METHOD: usize = 32;
