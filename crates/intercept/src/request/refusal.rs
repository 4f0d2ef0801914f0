//! The refusal of a request: one value, from which the client's response and the audit line are made.

use std::borrow::Cow;

use http::StatusCode;

/// Why a request was not forwarded, or got no response.
#[derive(Clone, Debug)]
pub(crate) struct Refusal {
    pub(crate) status: StatusCode,
    /// A stable code, for programs.
    pub(crate) code: &'static str,
    /// What happened, for people. Of what a peer sent, it quotes only names that were parsed.
    pub(crate) detail: String,
    /// What to do about it; may be empty.
    pub(crate) hint: &'static str,
    pub(crate) kind: RefusalKind,
    /// Whether the connection has to be closed after the response.
    pub(crate) close: bool,
}

/// What a refusal is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum RefusalKind {
    /// The request, the client, or a failure.
    #[default]
    Request,
    /// The destination.
    Destination,
    /// The destination's port, on which the jail does not listen.
    ClosedPort,
    /// The rate limit of certificates, which also refuses what the check has allowed.
    RateLimit,
}

impl Refusal {
    pub(crate) fn new(
        status: StatusCode,
        code: &'static str,
        detail: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self {
            status,
            code,
            detail: detail.into().into_owned(),
            hint: "",
            kind: RefusalKind::default(),
            close: false,
        }
    }

    pub(crate) fn with_hint(self, hint: &'static str) -> Self {
        Self { hint, ..self }
    }

    pub(crate) fn with_kind(self, kind: RefusalKind) -> Self {
        Self { kind, ..self }
    }

    /// Closes the connection after the response.
    pub(crate) fn with_close(self) -> Self {
        Self {
            close: true,
            ..self
        }
    }

    /// A request whose names for its target do not agree.
    pub(crate) fn name_mismatch(status: StatusCode, detail: String) -> Self {
        Self::new(status, "name_mismatch", detail)
            .with_hint("CONNECT, SNI and Host have to name the same host and port")
            .with_kind(RefusalKind::Destination)
    }

    /// A request that a proxy can't interpret.
    pub(crate) fn bad_request(detail: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad_request", detail).with_close()
    }
}
