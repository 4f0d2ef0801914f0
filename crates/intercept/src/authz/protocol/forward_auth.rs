//! forwardAuth, as Traefik does it: a GET that describes the request in `X-Forwarded-*`. A 2xx allows the request, anything
//! else is the client's response.

use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Request, StatusCode, Uri};
use peername_observe::escape::printable;

use super::opa::DATA_API;
use super::{PreparedCheck, Protocol, ProtocolConfig, attributes};
use crate::authz::config::error::ConfigError;
use crate::authz::config::sent_headers::SentHeaders;
use crate::authz::header_mutations::{HeaderMutations, MessageKind, MutationMode, is_mutable};
use crate::authz::request::AuthzRequest;
use crate::authz::response::{AuthzResponse, CacheLifetime};
use crate::authz::verdict::{AuthzError, Denial};
use crate::http_client::{HttpClient, HttpVersion};

/// The protocol of `http://HOST[:PORT]/PATH`.
pub(crate) static FORWARD_AUTH: Protocol = Protocol {
    name: "forwardAuth",
    scheme: "http",
    tls_scheme: "https",
    url_form: "http://HOST[:PORT]/PATH",
    needs_port: false,
    check_url,
    http_version: HttpVersion::Http1,
    sends_body: false,
    takes_response_headers: true,
    prepare,
};

fn check_url(url: &Uri) -> Result<(), ConfigError> {
    // OPA would answer every such GET with 200, which allows the request here.
    match url.path().starts_with(DATA_API) {
        true => Err(ConfigError::Url(
            "the check URL's path is one of OPA's; write opa+http://HOST:PORT/v1/data/PATH",
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
    let encoded = encode(uri, request, &config.sent)?;
    let take = config.take.clone();
    Ok(Box::new(move |_| {
        Box::pin(async move {
            let (head, body) = client.exchange(&encoded).await?;
            decode(head.status, &head.headers, body, &take)
        })
    }))
}

/// Encodes the request. The error is [`AuthzError::Malformed`], if a header can't hold a part of the description.
fn encode(
    uri: &Uri,
    request: &AuthzRequest<'_>,
    sent: &SentHeaders,
) -> Result<Request<Bytes>, AuthzError> {
    let mut encoded = Request::new(Bytes::new());
    *encoded.uri_mut() = uri.clone();
    let headers = encoded.headers_mut();
    for (name, value) in request.headers {
        if sent.includes(name) && is_mutable(name) && !is_reserved(&dashed(name)) {
            headers.append(name, value.clone());
        }
    }
    if let Some(trace) = request.trace() {
        trace.write(headers);
    }
    for (name, value) in describe(request) {
        let value = HeaderValue::from_bytes(value.as_bytes()).map_err(|_| NOT_ENCODABLE)?;
        headers.insert(name, value);
    }
    Ok(encoded)
}

/// The headers that describe the request.
fn describe(request: &AuthzRequest<'_>) -> Vec<(HeaderName, String)> {
    let headers = [
        ("x-forwarded-method", Some(request.method.to_string())),
        ("x-forwarded-proto", non_empty(request.scheme)),
        ("x-forwarded-host", Some(request.host())),
        ("x-forwarded-port", Some(request.to.port.to_string())),
        ("x-forwarded-uri", non_empty(request.path_and_query)),
        ("x-forwarded-for", Some(request.client.ip().to_string())),
        ("x-request-id", non_empty(request.request_id)),
    ];
    headers
        .into_iter()
        .chain(attributes::extension_headers(request))
        .filter_map(|(name, value)| Some((HeaderName::from_static(name), value?)))
        .collect()
}

fn non_empty(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

/// The name with dashes instead of characters that are no letters or digits: to a service behind CGI, WSGI or PHP, `X.A`, `X_A`
/// and `X-A` are one variable (RFC 3875, section 4.1.18).
fn dashed(name: &HeaderName) -> HeaderName {
    let is_separator = |c: char| !c.is_ascii_alphanumeric();
    let dashed = name.as_str().replace(is_separator, "-");
    dashed.parse().unwrap_or_else(|_| name.clone())
}

/// Whether a client's header with this [`dashed`] name is not sent to the service, because only the proxy may set it, or
/// because it is conditional: the condition or range is about the origin's resource, and the service would respond with 304 or
/// a part of its own.
fn is_reserved(name: &HeaderName) -> bool {
    let reserved = [
        header::IF_MATCH,
        header::IF_NONE_MATCH,
        header::IF_MODIFIED_SINCE,
        header::IF_UNMODIFIED_SINCE,
        header::IF_RANGE,
        header::RANGE,
        header::FORWARDED,
    ];
    let text = name.as_str();
    reserved.contains(name)
        || text.starts_with("x-forwarded-")
        || text.starts_with("x-peername-")
        || ["x-request-id", "x-real-ip"].contains(&text)
}

/// Decodes a response. An allowed request takes the headers `take` from it.
///
/// # Errors
///
/// [`AuthzError::Status`] for 5xx: the service failed to decide.
pub fn decode(
    status: StatusCode,
    headers: &HeaderMap,
    body: Bytes,
    take: &[HeaderName],
) -> Result<AuthzResponse, AuthzError> {
    if status.is_server_error() {
        return Err(AuthzError::Status(printable(&format!(
            "HTTP status {}",
            status.as_u16()
        ))));
    }
    let response = match status.is_success() {
        true => AuthzResponse::allow(take_headers(headers, take))?,
        false => AuthzResponse::deny(denial(status, headers, body)),
    };
    let cache_control = headers
        .get_all(header::CACHE_CONTROL)
        .iter()
        .map(|value| value.to_str().unwrap_or("no-store"))
        .collect::<Vec<_>>()
        .join(",");
    Ok(response.with_lifetime(CacheLifetime::parse(&cache_control)))
}

/// Replaces the request's headers `take` by those of the service's response. A header that the response lacks is removed,
/// because a client could claim with it what the service did not state.
fn take_headers(headers: &HeaderMap, take: &[HeaderName]) -> HeaderMutations {
    let mut changes = HeaderMutations::default();
    for name in take {
        changes.remove(name.as_str().as_bytes());
        for value in headers.get_all(name) {
            changes.add(
                MessageKind::Request,
                name.as_str().as_bytes(),
                value.as_bytes(),
                MutationMode::Append,
            );
        }
    }
    changes
}

fn denial(status: StatusCode, headers: &HeaderMap, body: Bytes) -> Denial {
    let mut denial = Denial::new(status, "");
    for (name, value) in headers {
        denial.add_header(name.as_str().as_bytes(), value.as_bytes());
    }
    denial.body = body;
    denial
}

const NOT_ENCODABLE: AuthzError =
    AuthzError::Malformed("the request can't be described in headers");

#[cfg(test)]
mod tests {
    use super::*;

    /// Without the error, the request would be sent with the client's own header.
    #[test]
    fn response_with_more_headers_than_are_taken_is_malformed() {
        let take = ["x-groups", "x-user"].map(HeaderName::from_static);
        for (groups, is_decoded) in [(60, true), (63, false)] {
            let mut headers = HeaderMap::new();
            for _ in 0..groups {
                headers.append("x-groups", HeaderValue::from_static("one"));
            }
            let decoded = decode(StatusCode::OK, &headers, Bytes::new(), &take);
            match is_decoded {
                true => assert!(decoded.is_ok()),
                false => assert!(matches!(decoded, Err(AuthzError::Malformed(_)))),
            }
        }
    }
}
