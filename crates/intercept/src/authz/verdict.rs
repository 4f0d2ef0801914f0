//! What came of asking.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

use super::header_mutations::{Changes, MOST, is_free};

/// The end of one question. There is no other: a service that can't be asked is a decision too.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// Whether the request goes on.
    pub decision: Decision,
    /// Who says so.
    pub how: How,
    /// From the question to this.
    pub took: Duration,
}

/// Whether a request goes on.
#[derive(Clone, Debug, PartialEq)]
pub enum Decision {
    /// It does, changed like this.
    Allow(Arc<Changes>),
    /// It doesn't, and this is the client's answer.
    Deny(Arc<Denial>),
}

impl Decision {
    /// Whether it goes on.
    pub fn allows(&self) -> bool {
        matches!(self, Self::Allow(_))
    }
}

/// Who decided.
#[derive(Clone, Debug)]
pub enum How {
    /// The service, on this question.
    Asked,
    /// The service, on a question like this one, a while ago.
    Cached,
    /// Nobody: the service could not be asked, which denies.
    Failed(Failure),
    /// Nobody, and the operator prefers the request to go on.
    FailedOpen(Failure),
}

/// What a client is told instead of what it asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct Denial {
    /// A redirection or an error, never anything that could be taken for the origin's content.
    pub status: StatusCode,
    /// Without those that belong to a connection or its framing.
    pub headers: HeaderMap,
    /// As the service wrote it; empty when it has nothing to say.
    pub body: Bytes,
    /// For our log: printable, short, empty when none was given.
    pub reason: Arc<str>,
}

impl Denial {
    /// A bare one, with the status if clients may be told it, else 403.
    pub(crate) fn new(status: StatusCode, reason: &str) -> Self {
        Self {
            status: match tells_of_denial(status) {
                true => status,
                false => StatusCode::FORBIDDEN,
            },
            headers: HeaderMap::new(),
            body: Bytes::new(),
            reason: printable(reason),
        }
    }

    /// Adds a header, if it may have it.
    pub(crate) fn add(&mut self, name: &[u8], value: &[u8]) {
        let name = HeaderName::from_bytes(name).ok().filter(is_free);
        let value = HeaderValue::from_bytes(value).ok();
        if let (Some(name), Some(value), true) = (name, value, self.headers.len() < MOST) {
            self.headers.append(name, value);
        }
    }

    /// About how much memory it takes.
    pub(crate) fn weight(&self) -> usize {
        let headers = self.headers.iter();
        let text = headers.map(|(name, value)| name.as_str().len() + value.len());
        text.sum::<usize>() + self.body.len() + self.reason.len()
    }
}

impl From<&Failure> for Denial {
    fn from(failure: &Failure) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, failure.code())
    }
}

/// A status below 400 that isn't a redirection would read as an answer of the origin's.
fn tells_of_denial(status: StatusCode) -> bool {
    status.is_client_error()
        || status.is_server_error()
        || matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308)
}

/// A stranger's words, made fit for a line of a log.
pub(crate) fn printable(text: &str) -> Arc<str> {
    let escaped = text.chars().flat_map(char::escape_debug);
    escaped.take(MOST_OF_A_REASON).collect::<String>().into()
}

/// Characters; a log line stays a line.
const MOST_OF_A_REASON: usize = 256;

/// Why the service could not be asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// Nothing, or only half an answer.
    #[error("the check service gave no whole answer within {}", humantime(*.0))]
    Timeout(Duration),
    /// Nobody listens, or the name doesn't resolve.
    #[error("connecting to the check service failed: {0}; is it running?")]
    Connect(Arc<str>),
    /// The connection ended, or spoke another protocol, in the middle of the answer.
    #[error("the check service's answer broke off or is not of its protocol: {0}")]
    Broken(Arc<str>),
    /// It answered that it can't answer.
    #[error("the check service reports an error of its own: {0}")]
    Status(Arc<str>),
    /// More than is read of an answer.
    #[error("the check service's answer is longer than {0} octets")]
    TooLong(usize),
    /// Whole, but not an answer.
    #[error("the check service's answer makes no sense: {0}")]
    Malformed(&'static str),
    /// As many questions are open as may be.
    #[error("{0} questions to the check service were open for the whole time")]
    Busy(usize),
    /// The breaker is open.
    #[error("the check service failed too often and is given a pause")]
    Suspended,
}

impl Failure {
    /// A word for logs, metrics and clients that stays the same.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Timeout(_) => "check_timeout",
            Self::Connect(_) => "check_connect",
            Self::Broken(_) => "check_broken",
            Self::Status(_) => "check_status",
            Self::TooLong(_) => "check_too_long",
            Self::Malformed(_) => "check_malformed",
            Self::Busy(_) => "check_busy",
            Self::Suspended => "check_suspended",
        }
    }
}

fn humantime(duration: Duration) -> String {
    format!("{duration:?}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_denial_can_not_be_taken_for_content() {
        for (given, told) in [
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
            let status = StatusCode::from_u16(given).unwrap();
            assert_eq!(Denial::new(status, "").status.as_u16(), told, "{given}");
        }
    }

    #[test]
    fn a_reason_is_short_and_printable() {
        let reason = printable(&("no\r\n\u{1b}[31m \u{202e}".to_owned() + &"x".repeat(1000)));
        assert!(
            reason.starts_with("no\\r\\n\\u{1b}[31m \\u{202e}xx"),
            "{reason}"
        );
        assert_eq!(reason.len(), MOST_OF_A_REASON);
    }
}
