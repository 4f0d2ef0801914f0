//! Why a request has no answer of its origin: one value that the client's answer and the audit line read.

use std::borrow::Cow;

use http::StatusCode;

use crate::authz::authorize::Denied;

/// A request that was not passed on, or was not answered.
#[derive(Clone, Debug)]
pub(crate) struct Refusal {
    pub(crate) status: StatusCode,
    /// Stable, for programs.
    pub(crate) code: &'static str,
    /// What happened, for people. Nothing of what a peer sent is in it, but names that were parsed.
    pub(crate) detail: String,
    /// What to do about it; may be empty.
    pub(crate) hint: &'static str,
    /// Whether the connection is of no more use.
    pub(crate) close: bool,
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
            close: false,
        }
    }

    /// What the check said, in our words.
    pub(crate) fn denied(denied: &Denied) -> Self {
        let Denied { denial, failed } = denied;
        let code = if *failed { "check_failed" } else { "denied" };
        let detail = match &*denial.reason {
            "" => "the request is not allowed".to_owned(),
            reason => reason.to_owned(),
        };
        Self::new(denial.status, code, detail)
    }

    pub(crate) fn hint(self, hint: &'static str) -> Self {
        Self { hint, ..self }
    }

    /// After this answer the connection is closed.
    pub(crate) fn closing(self) -> Self {
        Self {
            close: true,
            ..self
        }
    }

    /// Names of one request that do not agree.
    pub(crate) fn names(status: StatusCode, detail: String) -> Self {
        Self::new(status, "name_mismatch", detail)
            .hint("CONNECT, SNI and Host have to name the same host and port")
    }

    /// What is no request that a proxy could do anything with.
    pub(crate) fn bad_request(detail: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad_request", detail).closing()
    }
}
