//! The URL of a collector.

use std::str::FromStr;

use http::Uri;
use http::uri::{PathAndQuery, Scheme};

/// The URL to which spans are sent (`--otlp`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CollectorUrl(Uri);

/// Why a text is not the URL of a collector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CollectorUrlError {
    /// Not a URL, or not one of http or https.
    #[error(
        "not the URL of a collector: write http://HOST:4318, or https://HOST:4318 (OTLP over HTTP)"
    )]
    NotAUrl,
    /// A URL with credentials, which other users would see in the list of processes.
    #[error(
        "a URL with a password is shown to other users: put the header into OTEL_EXPORTER_OTLP_HEADERS"
    )]
    UserInfo,
    /// A URL with a query, which would be lost when the path is completed.
    #[error("the URL of a collector has no query")]
    Query,
}

impl CollectorUrl {
    /// The URL to which spans are sent, with the complete path.
    pub(super) fn uri(&self) -> &Uri {
        &self.0
    }
}

impl FromStr for CollectorUrl {
    type Err = CollectorUrlError;

    /// Parses a base URL, as in OTEL_EXPORTER_OTLP_ENDPOINT, or a URL with the complete path.
    fn from_str(text: &str) -> Result<Self, CollectorUrlError> {
        let base: Uri = text.parse().map_err(|_| CollectorUrlError::NotAUrl)?;
        let mut parts = base.into_parts();
        let is_http = parts
            .scheme
            .as_ref()
            .is_some_and(|scheme| *scheme == Scheme::HTTP || *scheme == Scheme::HTTPS);
        let authority = parts
            .authority
            .as_ref()
            .filter(|_| is_http)
            .ok_or(CollectorUrlError::NotAUrl)?;
        if authority.as_str().contains('@') {
            return Err(CollectorUrlError::UserInfo);
        }
        let path = parts.path_and_query.as_ref();
        if path.is_some_and(|path| path.query().is_some()) {
            return Err(CollectorUrlError::Query);
        }
        let path = path.map_or("", PathAndQuery::path).trim_end_matches('/');
        let path = format!("{}{TRACES}", path.strip_suffix(TRACES).unwrap_or(path));
        parts.path_and_query = path.parse().ok();
        Uri::from_parts(parts)
            .map(Self)
            .map_err(|_| CollectorUrlError::NotAUrl)
    }
}

/// The path to which spans are sent.
const TRACES: &str = "/v1/traces";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_for_spans_is_appended_to_a_base_url() {
        for (text, expected) in [
            ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces"),
            ("http://[::1]:4318/", "http://[::1]:4318/v1/traces"),
            ("https://a.test/otlp/", "https://a.test/otlp/v1/traces"),
            ("https://a.test/v1/traces", "https://a.test/v1/traces"),
        ] {
            let url: CollectorUrl = text.parse().unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(url.uri().to_string(), expected);
        }
    }

    #[test]
    fn url_with_credentials_or_query_or_another_scheme_is_refused() {
        for (text, error) in [
            ("", CollectorUrlError::NotAUrl),
            ("127.0.0.1:4318", CollectorUrlError::NotAUrl),
            ("grpc://127.0.0.1:4317", CollectorUrlError::NotAUrl),
            ("http://me:secret@a.test:4318", CollectorUrlError::UserInfo),
            ("http://a.test:4318/?key=1", CollectorUrlError::Query),
        ] {
            assert_eq!(text.parse::<CollectorUrl>(), Err(error), "{text}");
        }
    }
}
