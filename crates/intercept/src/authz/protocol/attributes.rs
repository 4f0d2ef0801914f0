//! The attributes of a request that ext_authz and OPA share. Both have UTF-8 and maps, where HTTP has bytes and lists.

use std::borrow::Cow;
use std::collections::BTreeMap;

use http::Version;
use http::header::{self, HeaderMap, HeaderValue};

use crate::authz::config::sent_headers::SentHeaders;
use crate::authz::request::AuthzRequest;

/// Headers by lower-case name, as Envoy sends them: several of one name joined, the pseudo-headers among them.
pub(crate) fn headers(request: &AuthzRequest<'_>, sent: &SentHeaders) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    for name in request.headers.keys().filter(|name| sent.includes(name)) {
        let between = if name == header::COOKIE { "; " } else { "," };
        all.insert(
            name.as_str().to_owned(),
            joined(request.headers, name, between),
        );
    }
    let pseudo = [
        (":authority", request.host()),
        (":method", request.method.to_string()),
        (":path", request.path_and_query.to_owned()),
        (":scheme", request.scheme.to_owned()),
    ];
    for (name, value) in pseudo {
        if !value.is_empty() {
            all.insert(name.to_owned(), value);
        }
    }
    if let Some(body) = request.body {
        all.insert(PARTIAL_BODY.to_owned(), body.truncated.to_string());
    }
    all
}

fn joined(headers: &HeaderMap, name: &header::HeaderName, between: &str) -> String {
    let values = headers.get_all(name).iter().map(HeaderValue::as_bytes);
    values.map(text).collect::<Vec<_>>().join(between)
}

/// Bytes as text: UTF-8, or else each byte as the character of its number (ISO 8859-1). Nothing is left out, and the message
/// stays valid: no client may make its check fail by what it sends.
pub(crate) fn text(bytes: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.into(),
        Err(_) => bytes.iter().map(|byte| char::from(*byte)).collect(),
    }
}

/// Attributes without a field of their own, as `context_extensions`.
pub(crate) fn extensions(request: &AuthzRequest<'_>) -> BTreeMap<&'static str, String> {
    let connect = request.connect.map(|connect| connect.to_string());
    let all = [
        ("mode", Some(request.kind.name().to_owned())),
        ("connect", connect),
        ("alpn", request.alpn.map(str::to_owned)),
        ("sni", request.sni.map(str::to_owned)),
        ("peer", Some(request.peer.to_string())),
    ];
    all.into_iter()
        .filter_map(|(name, value)| Some((name, value?)))
        .collect()
}

/// The protocol version as Envoy writes it.
pub(crate) fn protocol(request: &AuthzRequest<'_>) -> &'static str {
    match request.version {
        Version::HTTP_10 => "HTTP/1.0",
        Version::HTTP_2 => "HTTP/2",
        _ => "HTTP/1.1",
    }
}

/// Bytes of the body, -1 if that is not known.
pub(crate) fn size(request: &AuthzRequest<'_>) -> i64 {
    let size = request.body_size.map(i64::try_from);
    size.map_or(-1, |size| size.unwrap_or(i64::MAX))
}

/// Envoy's header that tells whether a body was truncated.
const PARTIAL_BODY: &str = "x-envoy-auth-partial-body";
