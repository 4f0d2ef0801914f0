//! The outcome of a check.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use peername_observe::escape::printable;

use super::header_mutations::{HeaderMutations, MAX_MUTATIONS, is_mutable};
use crate::http_client::error::HttpClientError;

/// The outcome of a check. Every check has one: if the service fails, the failure mode decides.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// Whether the request is allowed.
    pub decision: Decision,
    /// What made the decision.
    pub decided_by: DecidedBy,
    /// The duration of the check.
    pub took: Duration,
}

/// Whether a request is allowed.
#[derive(Clone, Debug, PartialEq)]
pub enum Decision {
    /// The request is allowed, with these changes of its headers.
    Allow(Arc<HeaderMutations>),
    /// The request is denied, with this response to the client.
    Deny(Arc<Denial>),
}

impl Decision {
    /// Whether the request is allowed.
    pub fn allows(&self) -> bool {
        matches!(self, Self::Allow(_))
    }
}

/// What made a decision.
#[derive(Clone, Debug)]
pub enum DecidedBy {
    /// The service, on this request.
    Service,
    /// The cache: the service decided on an equal request before.
    Cache,
    /// The check failed, and the failure mode denies.
    Failure(AuthzError),
    /// The check failed, and the failure mode allows.
    FailOpen(AuthzError),
}

/// The client's response to a denied request.
#[derive(Clone, Debug, PartialEq)]
pub struct Denial {
    /// A redirection or an error, never anything that could be taken for the origin's content.
    pub status: StatusCode,
    /// The headers, without those of the connection and the framing.
    pub headers: HeaderMap,
    /// The body as the service sent it; may be empty.
    pub body: Bytes,
    /// The reason for the audit log: printable, short, empty if the service gave none.
    pub reason: Arc<str>,
}

impl Denial {
    /// Creates a denial without headers and body. The status is 403 if `status` could be taken for the origin's.
    pub(crate) fn new(status: StatusCode, reason: &str) -> Self {
        Self {
            status: if is_denial(status) {
                status
            } else {
                StatusCode::FORBIDDEN
            },
            headers: HeaderMap::new(),
            body: Bytes::new(),
            reason: printable(reason),
        }
    }

    /// Adds a header, unless it belongs to the connection or the framing, is not valid, or is beyond the limit.
    pub(crate) fn add_header(&mut self, name: &[u8], value: &[u8]) {
        let name = HeaderName::from_bytes(name).ok().filter(is_mutable);
        let value = HeaderValue::from_bytes(value).ok();
        if let (Some(name), Some(value), true) = (name, value, self.headers.len() < MAX_MUTATIONS) {
            self.headers.append(name, value);
        }
    }

    /// Approximate memory in bytes.
    pub(crate) fn weight(&self) -> usize {
        self.headers
            .iter()
            .map(|(name, value)| name.as_str().len() + value.len())
            .sum::<usize>()
            + self.body.len()
            + self.reason.len()
    }
}

impl From<&AuthzError> for Denial {
    fn from(failure: &AuthzError) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, &failure.for_client())
    }
}

/// Whether a status can't be taken for the origin's content: a redirection or an error.
fn is_denial(status: StatusCode) -> bool {
    status.is_client_error()
        || status.is_server_error()
        || matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308)
}

/// Why a check failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuthzError {
    /// No complete response within the timeout.
    #[error("the check service gave no whole answer within {0:?}")]
    Timeout(Duration),
    /// The connection was refused, or the name doesn't resolve.
    #[error("connecting to the check service failed: {0} (is it running?)")]
    Connect(Arc<str>),
    /// The TLS handshake failed.
    #[error(
        "the TLS handshake with the check service failed: {0}; is its certificate of an authority in --check-ca, and does it accept \
         that of --check-cert?"
    )]
    Tls(Arc<str>),
    /// The connection was closed during the response, or the service speaks another protocol.
    #[error("the check service's answer broke off or is not of its protocol: {0}")]
    Broken(Arc<str>),
    /// The service reports an error.
    #[error("the check service reports an error of its own: {0}")]
    Status(Arc<str>),
    /// The response is too long.
    #[error("the check service's answer is longer than {0} bytes")]
    TooLong(usize),
    /// The response is complete, but not valid in its protocol.
    #[error("the check service's answer makes no sense: {0}")]
    Malformed(&'static str),
    /// The timeout passed before the check's permit, or before the response to a check that had waited for its permit for more
    /// than half of the time.
    #[error(
        "the check waited for others in flight (at most {0}, two thirds of them for one client), and its time ran out"
    )]
    Busy(usize),
    /// The circuit breaker is open.
    #[error("the check service failed too often and is not asked for a second")]
    Suspended,
}

impl AuthzError {
    /// Whether another service may be asked, because this one could not be reached.
    pub(crate) fn is_unreachable(&self) -> bool {
        matches!(
            self,
            Self::Connect(_) | Self::Tls(_) | Self::Broken(_) | Self::Suspended
        )
    }

    /// Whether the service has responded, though not with a decision.
    pub(crate) fn is_response(&self) -> bool {
        matches!(
            self,
            Self::Status(_) | Self::TooLong(_) | Self::Malformed(_)
        )
    }

    /// Describes the failure to the client, without addresses and causes, which only the log has.
    fn for_client(&self) -> String {
        let what = match self {
            Self::Timeout(_) => "did not answer in time",
            Self::Connect(_) => "did not answer",
            Self::Suspended => "is suspended for a second after failures",
            Self::Tls(_) => "could not be verified, or refused the proxy",
            Self::Broken(_) | Self::TooLong(_) | Self::Malformed(_) => "gave no valid answer",
            Self::Status(_) => "reports an error of its own",
            Self::Busy(_) => "has too many requests to decide on",
        };
        format!("the service that decides {what} ({})", self.code())
    }

    /// A stable code for logs, metrics and clients.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Timeout(_) => "check_timeout",
            Self::Connect(_) => "check_connect",
            Self::Tls(_) => "check_tls",
            Self::Broken(_) => "check_broken",
            Self::Status(_) => "check_status",
            Self::TooLong(_) => "check_too_long",
            Self::Malformed(_) => "check_malformed",
            Self::Busy(_) => "check_busy",
            Self::Suspended => "check_suspended",
        }
    }
}

impl From<HttpClientError> for AuthzError {
    fn from(error: HttpClientError) -> Self {
        match error {
            HttpClientError::Timeout(limit) => Self::Timeout(limit),
            HttpClientError::Connect(cause) => Self::Connect(cause),
            HttpClientError::Tls(cause) => Self::Tls(cause),
            HttpClientError::Broken(cause) => Self::Broken(cause),
            HttpClientError::TooLong(max) => Self::TooLong(max),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_is_explained_to_the_client_without_its_cause() {
        let connect = AuthzError::Connect("connect(2) to 10.0.0.1:9000: refused".into());
        let expected = "the service that decides did not answer (check_connect)";
        assert_eq!(&*Denial::from(&connect).reason, expected);
        // The service was not asked.
        let suspended = Denial::from(&AuthzError::Suspended).reason;
        assert!(!suspended.contains("answer"), "{suspended}");
        for failure in [
            AuthzError::Timeout(Duration::from_secs(1)),
            AuthzError::Tls("10.0.0.1".into()),
            AuthzError::Broken("10.0.0.1".into()),
            AuthzError::Status("10.0.0.1".into()),
            AuthzError::TooLong(1),
            AuthzError::Malformed("10.0.0.1"),
            AuthzError::Busy(1),
            AuthzError::Suspended,
        ] {
            let reason = Denial::from(&failure).reason;
            let end = format!("({})", failure.code());
            assert!(reason.starts_with("the service that decides "), "{reason}");
            assert!(
                reason.ends_with(&end) && !reason.contains("10.0"),
                "{reason}"
            );
        }
    }

    #[test]
    fn a_denial_can_not_be_taken_for_the_origins_content() {
        for (service_status, client_status) in [
            (200, 403),
            (204, 403),
            (304, 403),
            (101, 403),
            (302, 302),
            (401, 401),
            (429, 429),
            (500, 500),
            (999, 403),
        ] {
            let status = StatusCode::from_u16(service_status).unwrap();
            let denial = Denial::new(status, "");
            assert_eq!(denial.status.as_u16(), client_status, "{service_status}");
        }
    }
}
