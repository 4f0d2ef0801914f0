//! The error of a request whose head or framing is invalid.

use http::StatusCode;

use crate::request::refusal::Refusal;

/// Why a request is refused because of its head or its framing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{detail}")]
pub(crate) struct FramingError {
    pub(super) status: StatusCode,
    pub(super) detail: &'static str,
}

impl From<&'static str> for FramingError {
    fn from(detail: &'static str) -> Self {
        Self {
            status: StatusCode::BAD_REQUEST,
            detail,
        }
    }
}

impl From<FramingError> for Refusal {
    fn from(FramingError { status, detail }: FramingError) -> Self {
        Self {
            status,
            ..Self::bad_request(detail)
        }
    }
}
