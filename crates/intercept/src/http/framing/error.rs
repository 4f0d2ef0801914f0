//! The error of a request whose head or framing is invalid.

use std::borrow::Cow;

use http::StatusCode;

use crate::request::refusal::Refusal;

/// Why a request is refused because of its head or its framing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{detail}")]
pub(crate) struct FramingError {
    status: StatusCode,
    detail: Cow<'static, str>,
}

impl FramingError {
    pub(super) fn new(status: StatusCode, detail: impl Into<Cow<'static, str>>) -> Self {
        Self {
            status,
            detail: detail.into(),
        }
    }

    /// More than `max` of these header fields, or of these units.
    pub(super) fn too_many(max: usize, what: &str) -> Self {
        let detail = format!("more than {max} {what}");
        Self::new(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, detail)
    }
}

impl From<&'static str> for FramingError {
    fn from(detail: &'static str) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail)
    }
}

impl From<FramingError> for Refusal {
    fn from(error: FramingError) -> Self {
        Self::new(error.status, "bad_request", error.detail).with_close()
    }
}
