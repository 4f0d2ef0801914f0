//! Requests to the collector.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderValue, USER_AGENT};
use http::{Method, Request, StatusCode, Uri};
use prost::Message as _;
use tokio::time::timeout;

use super::collector_url::CollectorUrl;
use super::environment::{self, ExporterError};
use super::messages::{ExportTracePartialSuccess, ExportTraceServiceResponse};
use crate::http_client::connector::Endpoint;
use crate::http_client::error::HttpClientError;
use crate::http_client::tls::{ClientTls, Credentials};
use crate::http_client::{HttpClient, HttpVersion};

/// A collector, with the connections to it.
#[derive(Debug)]
pub(super) struct Collector {
    uri: Uri,
    headers: HeaderMap,
    client: HttpClient,
}

/// Why a batch was not exported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SendError {
    pub(super) cause: Arc<str>,
    /// Whether the batch may be sent again.
    pub(super) is_temporary: bool,
}

impl Collector {
    /// Reads the environment, and for https the trusted roots of this host. Nothing is connected yet.
    pub(super) fn new(url: &CollectorUrl) -> Result<Self, ExporterError> {
        let mut endpoint = Endpoint {
            uri: url.uri().clone(),
            socket: None,
            tls: None,
        };
        if endpoint.is_https() {
            endpoint.tls = Some(ClientTls::new(Credentials::native())?);
        }
        let mut headers = environment::headers()?;
        let protobuf = HeaderValue::from_static("application/x-protobuf");
        headers.insert(CONTENT_TYPE, protobuf);
        let agent = concat!("peername/", env!("CARGO_PKG_VERSION"));
        headers.insert(USER_AGENT, HeaderValue::from_static(agent));
        Ok(Self {
            uri: endpoint.uri.clone(),
            headers,
            client: HttpClient::new(&endpoint, HttpVersion::Http1, TIMEOUT),
        })
    }

    pub(super) fn uri(&self) -> &Uri {
        &self.uri
    }

    /// Sends an encoded batch. Returns how many of its spans the collector has rejected.
    pub(super) async fn send(&self, batch: Bytes) -> Result<ExportTracePartialSuccess, SendError> {
        let mut request = Request::new(batch);
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.uri.clone();
        *request.headers_mut() = self.headers.clone();
        let (head, body) = timeout(TIMEOUT, self.client.exchange(&request))
            .await
            .unwrap_or(Err(HttpClientError::Timeout(TIMEOUT)))
            .map_err(|error| SendError::from_error(&error))?;
        if !head.status.is_success() {
            return Err(SendError::from_status(head.status));
        }
        // If the status is a success, a response that can't be decoded counts as one that rejects no span.
        let response = ExportTraceServiceResponse::decode(body).unwrap_or_default();
        Ok(response.partial_success.unwrap_or_default())
    }
}

impl SendError {
    fn from_error(error: &HttpClientError) -> Self {
        let cause = match error {
            HttpClientError::Connect(cause)
            | HttpClientError::Tls(cause)
            | HttpClientError::Broken(cause) => Arc::clone(cause),
            HttpClientError::Timeout(limit) => format!("no response within {limit:?}").into(),
            HttpClientError::TooLong(_) => "its response is not one of OTLP".into(),
        };
        Self {
            cause,
            is_temporary: true,
        }
    }

    /// The OTLP specification lists the statuses after which a request may be repeated.
    fn from_status(status: StatusCode) -> Self {
        Self {
            cause: format!("it answers {status}").into(),
            is_temporary: matches!(status.as_u16(), 429 | 502 | 503 | 504),
        }
    }
}

/// The timeout for connecting, and for a request with its response: OpenTelemetry's default (OTEL_EXPORTER_OTLP_TIMEOUT).
const TIMEOUT: Duration = Duration::from_secs(10);
