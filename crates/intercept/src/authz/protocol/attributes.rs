//! What ext_authz and OPA are told alike. Both speak UTF-8 and maps; HTTP speaks octets and lists.

use std::borrow::Cow;
use std::collections::BTreeMap;

use http::Version;
use http::header::{self, HeaderMap, HeaderValue};

use crate::authz::config::Sent;
use crate::authz::request::Question;

/// Headers by lower-case name, as Envoy sends them: several of one name joined, the pseudo-headers among them.
pub(crate) fn headers(question: &Question<'_>, sent: &Sent) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    for name in question.headers.keys().filter(|name| sent.includes(name)) {
        let between = if name == header::COOKIE { "; " } else { "," };
        all.insert(
            name.as_str().to_owned(),
            joined(question.headers, name, between),
        );
    }
    let pseudo = [
        (":authority", question.host()),
        (":method", question.method.to_string()),
        (":path", question.path_and_query.to_owned()),
        (":scheme", question.scheme.to_owned()),
    ];
    let pseudo = pseudo.into_iter().filter(|(_, value)| !value.is_empty());
    all.extend(pseudo.map(|(name, value)| (name.to_owned(), value)));
    if let Some(body) = question.body {
        all.insert(PARTIAL_BODY.to_owned(), body.truncated.to_string());
    }
    all
}

fn joined(headers: &HeaderMap, name: &header::HeaderName, between: &str) -> String {
    let values = headers.get_all(name).iter().map(HeaderValue::as_bytes);
    values.map(text).collect::<Vec<_>>().join(between)
}

/// Octets as text: UTF-8, or else each octet the character of its number (ISO 8859-1). Nothing is left out, and
/// the message stays valid: a check must not fail for what a client wrote.
pub(crate) fn text(octets: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(octets) {
        Ok(text) => text.into(),
        Err(_) => octets.iter().map(|octet| char::from(*octet)).collect(),
    }
}

/// What has no field of its own, as `context_extensions`.
pub(crate) fn extensions(question: &Question<'_>) -> BTreeMap<&'static str, String> {
    let connect = question.connect.map(|connect| connect.to_string());
    let all = [
        ("mode", Some(question.kind.name().to_owned())),
        ("connect", connect),
        ("alpn", question.alpn.map(str::to_owned)),
        ("sni", question.sni.map(str::to_owned)),
        ("peer", Some(question.peer.to_string())),
    ];
    let said = all.into_iter();
    said.filter_map(|(name, value)| Some((name, value?)))
        .collect()
}

/// As Envoy writes it.
pub(crate) fn protocol(question: &Question<'_>) -> &'static str {
    match question.version {
        Version::HTTP_10 => "HTTP/1.0",
        Version::HTTP_2 => "HTTP/2",
        _ => "HTTP/1.1",
    }
}

/// Octets of the body, -1 when that is not known.
pub(crate) fn size(question: &Question<'_>) -> i64 {
    let size = question.body_size.map(i64::try_from);
    size.map_or(-1, |size| size.unwrap_or(i64::MAX))
}

/// Envoy's name for whether a body was cut.
const PARTIAL_BODY: &str = "x-envoy-auth-partial-body";
