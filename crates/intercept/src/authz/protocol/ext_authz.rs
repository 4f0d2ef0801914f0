//! Envoy's ext_authz, version 3: `envoy.service.auth.v3.Authorization/Check` over gRPC.

pub mod messages;
mod reply;

use std::collections::HashMap;
use std::error::Error;
use std::net::SocketAddr;
use std::time::Duration;

use http::uri::PathAndQuery;
use http::{HeaderMap, Uri};
use peername_observe::escape::printable;
use tokio::time::Instant;
use tonic::client::Grpc;
use tonic::metadata::MetadataMap;
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;

use super::attributes;
use super::{PreparedCheck, Protocol, ProtocolConfig};
use crate::authz::config::error::ConfigError;
use crate::authz::config::sent_headers::SentHeaders;
use crate::authz::request::AuthzRequest;
use crate::authz::verdict::AuthzError;
use crate::http_client::error::HttpClientError;
use crate::http_client::{HttpClient, HttpVersion, MAX_RESPONSE, Pool};

use messages::{
    Address, AttributeContext, CheckRequest, CheckResponse, HttpRequest, Peer, SocketAddress,
    TlsSession,
};

pub use reply::decode;

/// The protocol of `grpc://HOST:PORT`.
pub(crate) static EXT_AUTHZ: Protocol = Protocol {
    name: "Envoy's ext_authz",
    scheme: "grpc",
    tls_scheme: "grpcs",
    url_form: "grpc://HOST:PORT",
    needs_port: true,
    check_url,
    http_version: HttpVersion::Http2,
    sends_body: true,
    takes_response_headers: false,
    prepare,
};

fn check_url(url: &Uri) -> Result<(), ConfigError> {
    match url.path_and_query().is_some_and(|path| path != "/") {
        true => Err(ConfigError::Url(
            "a grpc check URL has no path; write grpc://HOST:PORT",
        )),
        false => Ok(()),
    }
}

fn prepare<'a>(
    client: &'a HttpClient,
    uri: &'a Uri,
    request: &AuthzRequest<'_>,
    config: &ProtocolConfig,
) -> Result<PreparedCheck<'a>, AuthzError> {
    let mut metadata = HeaderMap::new();
    if let Some(trace) = request.trace() {
        trace.write(&mut metadata);
    }
    let request = check_request(request, &config.sent);
    Ok(Box::new(move |deadline: Instant| {
        Box::pin(async move {
            let (_, pool) = client.pool();
            let timeout = deadline.saturating_duration_since(Instant::now());
            let send = |request| {
                let metadata = MetadataMap::from_headers(metadata.clone());
                call(&pool, uri, metadata, request, timeout)
            };
            let reply = match send(request.clone()).await {
                // The service may have closed an idle connection while the request was written to it: one retry.
                Err(AuthzError::Broken(_)) => send(request).await,
                result => result,
            };
            decode(reply?)
        })
    }))
}

/// Makes one call, with `timeout` as its gRPC deadline.
///
/// # Errors
///
/// [`AuthzError::Connect`] or [`AuthzError::Broken`] for a failed connection, [`AuthzError::Status`] for a gRPC status other
/// than OK (a denial is a response with status OK), [`AuthzError::Malformed`] unless there is one message and one status.
async fn call(
    pool: &Pool,
    origin: &Uri,
    metadata: MetadataMap,
    request: CheckRequest,
    timeout: Duration,
) -> Result<CheckResponse, AuthzError> {
    let mut client =
        Grpc::with_origin(pool.clone(), origin.clone()).max_decoding_message_size(MAX_RESPONSE);
    let mut request = Request::new(request);
    *request.metadata_mut() = metadata;
    request.set_timeout(timeout);
    client
        .ready()
        .await
        .map_err(|error| HttpClientError::new(&error))?;
    let path = PathAndQuery::from_static("/envoy.service.auth.v3.Authorization/Check");
    // A unary call would ignore messages after the first.
    let response = client
        .server_streaming(request, path, ProstCodec::default())
        .await
        .map_err(error_from_status)?;
    let (head, mut messages, _) = response.into_parts();
    let mut next_message = async || messages.message().await.map_err(error_from_status);
    let reply = next_message()
        .await?
        .ok_or(AuthzError::Malformed("no message"))?;
    if next_message().await?.is_some() {
        return Err(AuthzError::Malformed("more than one message"));
    }
    let trailers = messages.trailers().await.map_err(error_from_status)?;
    let statuses: usize = [Some(head), trailers]
        .iter()
        .flatten()
        .map(|metadata| metadata.get_all("grpc-status").iter().count())
        .sum();
    match statuses {
        1 => Ok(reply),
        _ => Err(AuthzError::Malformed("not one status of gRPC")),
    }
}

/// Converts a gRPC status. To tonic an error of the connection is a status too, with that error as its source.
fn error_from_status(status: Status) -> AuthzError {
    match status.source() {
        Some(source) => HttpClientError::new(source).into(),
        None if status.code() == Code::OutOfRange => AuthzError::TooLong(MAX_RESPONSE),
        None => AuthzError::Status(printable(&format!(
            "gRPC {:?}: {}",
            status.code(),
            status.message()
        ))),
    }
}

/// The request as Envoy would send it.
fn check_request(request: &AuthzRequest<'_>, sent: &SentHeaders) -> CheckRequest {
    let source = peer(request.client);
    let destination = peer_at(request.to.host.to_string(), request.to.port);
    CheckRequest {
        attributes: Some(AttributeContext {
            source: Some(source),
            destination: Some(destination),
            request: Some(messages::Request {
                http: Some(http_attributes(request, sent)),
            }),
            tls_session: request.sni.map(|sni| TlsSession {
                sni: sni.to_owned(),
            }),
            context_extensions: attributes::extensions(request)
                .into_iter()
                .map(|(name, value)| (name.to_owned(), value))
                .collect(),
        }),
    }
}

fn http_attributes(authz: &AuthzRequest<'_>, sent: &SentHeaders) -> HttpRequest {
    let mut request = HttpRequest {
        id: authz.request_id.to_owned(),
        method: authz.method.to_string(),
        headers: HashMap::from_iter(attributes::headers(authz, sent)),
        path: authz.path_and_query.to_owned(),
        host: authz.host(),
        scheme: authz.scheme.to_owned(),
        size: attributes::size(authz),
        protocol: attributes::protocol(authz).to_owned(),
        ..Default::default()
    };
    if let Some(body) = authz.body {
        match std::str::from_utf8(&body.bytes) {
            Ok(text) => text.clone_into(&mut request.body),
            Err(_) => request.raw_body = body.bytes.to_vec(),
        }
    }
    request
}

fn peer(addr: SocketAddr) -> Peer {
    peer_at(addr.ip().to_string(), addr.port())
}

fn peer_at(address: String, port: u16) -> Peer {
    let socket_address = SocketAddress {
        address,
        port_value: Some(port.into()),
    };
    Peer {
        address: Some(Address {
            socket_address: Some(socket_address),
        }),
    }
}
