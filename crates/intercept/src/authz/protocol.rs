//! Protocols of check services, behind one trait.

pub(crate) mod attributes;
pub(crate) mod ext_authz;
pub(crate) mod forward_auth;
pub(crate) mod opa;
pub(crate) mod rego;

use std::fmt::Debug;
use std::pin::Pin;

use bytes::Bytes;
use http::header::HeaderName;
use http::{Request, Uri, response};
use tokio::time::Instant;

use super::config::error::ConfigError;
use super::config::sent_headers::SentHeaders;
use super::request::AuthzRequest;
use super::response::AuthzResponse;
use super::verdict::AuthzError;
use crate::http_client::{HttpClient, HttpVersion};

/// A protocol of check services.
pub(crate) trait Protocol: Debug + Send + Sync {
    /// The form of its URLs, for error texts.
    fn url_form(&self) -> &'static str;

    /// Whether its URLs need a port.
    fn needs_port(&self) -> bool;

    /// Checks the path of a URL.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Url`].
    fn check_url(&self, url: &Uri) -> Result<(), ConfigError>;

    /// The HTTP version below it.
    fn http_version(&self) -> HttpVersion;

    /// Whether it can send the beginning of a request's body (`--check-body`).
    fn sends_body(&self) -> bool;

    /// Whether a request can take headers from its responses (`--check-take`).
    fn takes_response_headers(&self) -> bool;

    /// Encodes a request for the service.
    ///
    /// # Errors
    ///
    /// [`AuthzError::Malformed`] if the request can't be expressed in the protocol.
    fn encode(
        &self,
        uri: &Uri,
        request: &AuthzRequest<'_>,
        config: EncodeConfig<'_>,
    ) -> Result<Box<dyn EncodedRequest>, AuthzError>;
}

/// The part of the configuration that matters to a protocol.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EncodeConfig<'a> {
    pub(crate) sent: &'a SentHeaders,
    /// Headers that the request takes from the response.
    pub(crate) take: &'a [HeaderName],
}

/// A request to the service that is ready to be sent.
pub(crate) trait EncodedRequest: Send {
    /// Sends it, and decodes the response. `deadline` is only for telling the service; the caller enforces it.
    fn send(self: Box<Self>, client: &HttpClient, deadline: Instant) -> ResponseFuture<'_>;
}

pub(crate) type ResponseFuture<'a> =
    Pin<Box<dyn Future<Output = Result<AuthzResponse, AuthzError>> + Send + 'a>>;

/// A request over plain HTTP, with the decoder for its response.
pub(crate) struct HttpRequest<D> {
    pub(crate) request: Request<Bytes>,
    pub(crate) decode: D,
}

impl<D> EncodedRequest for HttpRequest<D>
where
    D: FnOnce(response::Parts, Bytes) -> Result<AuthzResponse, AuthzError> + Send + 'static,
{
    fn send(self: Box<Self>, client: &HttpClient, _: Instant) -> ResponseFuture<'_> {
        Box::pin(async move {
            let (head, body) = client.exchange(&self.request).await?;
            (self.decode)(head, body)
        })
    }
}
