//! The attributes of a request as ext_authz and OPA have them: HTTP's bytes as UTF-8, and its list of headers as a map.

use std::borrow::Cow;
use std::collections::BTreeMap;

use http::Version;
use http::header::{self, HeaderMap, HeaderName};

use crate::authz::config::sent_headers::SentHeaders;
use crate::authz::request::AuthzRequest;

/// Headers by lower-case name, as Envoy sends them: with the pseudo-headers, and the values of one name joined.
pub(crate) fn headers(request: &AuthzRequest<'_>, sent: &SentHeaders) -> BTreeMap<String, String> {
    let mut headers = BTreeMap::new();
    for name in request.headers.keys().filter(|name| sent.includes(name)) {
        headers.insert(name.as_str().to_owned(), join_values(request.headers, name));
    }
    let pseudo = [
        (":authority", request.host()),
        (":method", request.method.to_string()),
        (":path", request.path_and_query.to_owned()),
        (":scheme", request.scheme.to_owned()),
    ];
    for (name, value) in pseudo {
        if !value.is_empty() {
            headers.insert(name.to_owned(), value);
        }
    }
    if let Some(body) = request.body {
        headers.insert(PARTIAL_BODY.to_owned(), body.truncated.to_string());
    }
    headers
}

fn join_values(headers: &HeaderMap, name: &HeaderName) -> String {
    headers
        .get_all(name)
        .iter()
        .map(|value| text(value.as_bytes()))
        .collect::<Vec<_>>()
        .join(if name == header::COOKIE { "; " } else { "," })
}

/// Decodes bytes as UTF-8, or if they are not valid, as ISO 8859-1. So every byte is sent, and no client can make its own check
/// fail with bytes that a message can't hold.
pub(crate) fn text(bytes: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.into(),
        Err(_) => bytes.iter().map(|byte| char::from(*byte)).collect(),
    }
}

/// An attribute for which Envoy's messages have no field.
struct Extension {
    name: &'static str,
    /// The header of forwardAuth; `None` if the attribute is not sent there.
    header: Option<&'static str>,
    value: Option<String>,
}

/// The attributes for which Envoy's messages have no field, sent as `context_extensions`.
pub(crate) fn extensions(request: &AuthzRequest<'_>) -> BTreeMap<&'static str, String> {
    all_extensions(request)
        .into_iter()
        .filter_map(|extension| Some((extension.name, extension.value?)))
        .collect()
}

/// Those of the [`extensions`] that forwardAuth has, by header.
pub(crate) fn extension_headers(
    request: &AuthzRequest<'_>,
) -> impl Iterator<Item = (&'static str, Option<String>)> {
    all_extensions(request)
        .into_iter()
        .filter_map(|extension| Some((extension.header?, extension.value)))
}

impl Extension {
    fn new(name: &'static str, header: Option<&'static str>, value: Option<String>) -> Self {
        Self {
            name,
            header,
            value,
        }
    }
}

fn all_extensions(request: &AuthzRequest<'_>) -> [Extension; 5] {
    // Without `..`: a new attribute has to be sent here or in a field of its own.
    let AuthzRequest {
        kind,
        peer,
        connect,
        sni,
        alpn,
        request_id: _,
        client: _,
        version: _,
        method: _,
        scheme: _,
        to: _,
        path_and_query: _,
        headers: _,
        traceparent: _,
        body_size: _,
        body: _,
    } = *request;
    let mode = kind.name().to_owned();
    let connect = connect.map(|connect| connect.to_string());
    let alpn = alpn.map(str::to_owned);
    let sni = sni.map(str::to_owned);
    [
        Extension::new("mode", Some("x-peername-mode"), Some(mode)),
        Extension::new("connect", Some("x-peername-connect"), connect),
        Extension::new("alpn", None, alpn),
        Extension::new("sni", Some("x-peername-sni"), sni),
        Extension::new("peer", None, Some(peer.to_string())),
    ]
}

/// The protocol version as Envoy writes it.
pub(crate) fn protocol(request: &AuthzRequest<'_>) -> &'static str {
    match request.version {
        Version::HTTP_10 => "HTTP/1.0",
        Version::HTTP_2 => "HTTP/2",
        _ => "HTTP/1.1",
    }
}

/// The length of the body in bytes; -1 if it is not known.
pub(crate) fn size(request: &AuthzRequest<'_>) -> i64 {
    match request.body_size {
        Some(size) => i64::try_from(size).unwrap_or(i64::MAX),
        None => -1,
    }
}

/// Envoy's header that tells whether a body was truncated.
const PARTIAL_BODY: &str = "x-envoy-auth-partial-body";
