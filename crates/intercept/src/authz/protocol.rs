//! Protocols of check services.

pub(crate) mod attributes;
pub(crate) mod ext_authz;
pub(crate) mod forward_auth;
pub(crate) mod opa;
pub(crate) mod rego;

use std::pin::Pin;

use http::Uri;
use http::header::HeaderName;
use tokio::time::Instant;

use super::config::error::ConfigError;
use super::config::sent_headers::SentHeaders;
use super::request::AuthzRequest;
use super::response::AuthzResponse;
use super::verdict::AuthzError;
use crate::http_client::{HttpClient, HttpVersion};

/// A protocol of check services.
#[derive(Debug)]
pub(crate) struct Protocol {
    /// Its name, for help texts.
    pub(crate) name: &'static str,
    /// The scheme of its URLs without TLS.
    pub(crate) scheme: &'static str,
    /// The scheme of its URLs with TLS.
    pub(crate) tls_scheme: &'static str,
    /// The form of its URLs without TLS, for help and error texts.
    pub(crate) url_form: &'static str,
    /// Whether its URLs need a port.
    pub(crate) needs_port: bool,
    /// Checks the path of a URL; the error is [`ConfigError::Url`].
    pub(crate) check_url: fn(&Uri) -> Result<(), ConfigError>,
    /// The HTTP version below it.
    pub(crate) http_version: HttpVersion,
    /// Whether it can send the beginning of a request's body (`--check-body`).
    pub(crate) sends_body: bool,
    /// Whether a request can take headers from its responses (`--check-take`).
    pub(crate) takes_response_headers: bool,
    /// Encodes a request for the service at this URI. The error is [`AuthzError::Malformed`] if the request can't be
    /// expressed in the protocol.
    pub(crate) prepare: PrepareFn,
}

type PrepareFn = for<'a> fn(
    &'a HttpClient,
    &'a Uri,
    &AuthzRequest<'_>,
    &ProtocolConfig,
) -> Result<PreparedCheck<'a>, AuthzError>;

/// The part of the configuration that matters to a protocol.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ProtocolConfig {
    /// The request headers that the service sees.
    pub sent: SentHeaders,
    /// Headers that the request takes from a forwardAuth service's response. One that is not in the response is removed.
    pub take: Vec<HeaderName>,
}

/// Makes an encoded check that has a deadline. The caller has to enforce the deadline of a check over the network; the
/// evaluation of a policy ends at it by itself.
pub(crate) type PreparedCheck<'a> = Box<dyn FnOnce(Instant) -> ResponseFuture<'a> + Send + 'a>;

type ResponseFuture<'a> =
    Pin<Box<dyn Future<Output = Result<AuthzResponse, AuthzError>> + Send + 'a>>;
