//! Envoy's ext_authz, version 3: `envoy.service.auth.v3.Authorization/Check` over gRPC.

use std::collections::HashMap;
use std::error::Error;
use std::net::SocketAddr;
use std::time::Duration;

use envoy_types::pb::envoy::config::core::v3::{Address, SocketAddress, address, socket_address};
use envoy_types::pb::envoy::service::auth::v3::authorization_client::AuthorizationClient;
use envoy_types::pb::envoy::service::auth::v3::{
    AttributeContext, CheckRequest, CheckResponse, attribute_context,
};
use http::Uri;
use tonic::{Code, Request, Status};

use super::attributes;
use crate::authz::config::Sent;
use crate::authz::request::Question;
use crate::authz::transport::{MOST_OF_AN_ANSWER, Pool, failure};
use crate::authz::verdict::{Failure, printable};

mod reply;

pub use reply::read;

/// One call, which the service is told to end within `limit`.
///
/// # Errors
///
/// [`Failure::Connect`], [`Failure::Broken`], and [`Failure::Status`] for any gRPC status but OK: a denial is an
/// answer, and has status OK.
pub(crate) async fn call(
    pool: &Pool,
    origin: &Uri,
    question: CheckRequest,
    limit: Duration,
) -> Result<CheckResponse, Failure> {
    match once(pool, origin, question.clone(), limit).await {
        // A connection that was kept open may have been closed as this was written to it: once more.
        Err(Failure::Broken(_)) => once(pool, origin, question, limit).await,
        result => result,
    }
}

async fn once(
    pool: &Pool,
    origin: &Uri,
    question: CheckRequest,
    limit: Duration,
) -> Result<CheckResponse, Failure> {
    let mut client = AuthorizationClient::with_origin(pool.clone(), origin.clone())
        .max_decoding_message_size(MOST_OF_AN_ANSWER);
    let mut request = Request::new(question);
    request.set_timeout(limit);
    let reply = client.check(request).await;
    reply.map(tonic::Response::into_inner).map_err(why)
}

/// A status that the connection's end was made into, or one that the service (or what it sent) stands for.
fn why(status: Status) -> Failure {
    match status.source() {
        Some(source) => failure(source),
        None if status.code() == Code::OutOfRange => Failure::TooLong(MOST_OF_AN_ANSWER),
        None => Failure::Status(printable(&format!(
            "gRPC {:?}: {}",
            status.code(),
            status.message()
        ))),
    }
}

/// The question as Envoy would put it.
pub(crate) fn request(question: &Question<'_>, sent: &Sent) -> CheckRequest {
    let source = peer(question.client);
    let destination = at(question.to.host.to_owned(), question.to.port);
    let sni = question.sni.map(str::to_owned);
    let extensions = attributes::extensions(question).into_iter();
    CheckRequest {
        attributes: Some(AttributeContext {
            source: Some(source),
            destination: Some(destination),
            request: Some(attribute_context::Request {
                http: Some(http_request(question, sent)),
                ..Default::default()
            }),
            tls_session: sni.map(|sni| attribute_context::TlsSession { sni }),
            context_extensions: extensions
                .map(|(name, value)| (name.to_owned(), value))
                .collect(),
            ..Default::default()
        }),
    }
}

fn http_request(question: &Question<'_>, sent: &Sent) -> attribute_context::HttpRequest {
    let mut request = attribute_context::HttpRequest {
        id: question.request_id.to_owned(),
        method: question.method.to_string(),
        headers: HashMap::from_iter(attributes::headers(question, sent)),
        path: question.path_and_query.to_owned(),
        host: question.host(),
        scheme: question.scheme.to_owned(),
        size: attributes::size(question),
        protocol: attributes::protocol(question).to_owned(),
        ..Default::default()
    };
    if let Some(body) = question.body {
        match std::str::from_utf8(body.bytes) {
            Ok(text) => text.clone_into(&mut request.body),
            Err(_) => request.raw_body = body.bytes.to_vec(),
        }
    }
    request
}

fn peer(of: SocketAddr) -> attribute_context::Peer {
    at(of.ip().to_string(), of.port())
}

fn at(address: String, port: u16) -> attribute_context::Peer {
    let port = socket_address::PortSpecifier::PortValue(port.into());
    let socket = SocketAddress {
        address,
        port_specifier: Some(port),
        ..Default::default()
    };
    attribute_context::Peer {
        address: Some(Address {
            address: Some(address::Address::SocketAddress(socket)),
        }),
        ..Default::default()
    }
}
