//! The request headers that the check service sees.

use http::header::{self, HeaderName};

/// The headers of a request that are sent to the check service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum SentHeaders {
    /// All but Authorization, Proxy-Authorization and Cookie: the client's secrets are for the origin or the proxy, not for the
    /// service.
    #[default]
    AllButCredentials,
    /// All headers.
    All,
    /// These headers.
    Only(Vec<HeaderName>),
}

impl SentHeaders {
    /// Whether this header is sent.
    pub(crate) fn includes(&self, name: &HeaderName) -> bool {
        match self {
            Self::AllButCredentials => !CREDENTIALS.contains(name),
            Self::All => true,
            Self::Only(names) => names.contains(name),
        }
    }
}

const CREDENTIALS: [HeaderName; 3] = [
    header::AUTHORIZATION,
    header::PROXY_AUTHORIZATION,
    header::COOKIE,
];
