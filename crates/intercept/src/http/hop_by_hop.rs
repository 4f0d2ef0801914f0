//! Hop-by-hop headers, which belong to one connection and are not forwarded (RFC 9110, section 7.6.1).

use http::Version;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::request::Parts;

use super::error_response::{CODE, CONTACT, REQUEST_ID};

/// Whether the client waits for 100 (Continue) before it sends its body (RFC 9110, section 10.1.1). Over HTTP/2 it is `false`,
/// because hyper can't send a 100.
pub(crate) fn expects_continue(request: &Parts) -> bool {
    let expectation = request.headers.get(header::EXPECT);
    request.version == Version::HTTP_11
        && expectation.is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"100-continue"))
}

/// Removes from a request what was meant for the proxy.
pub(crate) fn strip_request(headers: &mut HeaderMap) {
    let wants_trailers = has_item(headers, &header::TE, "trailers");
    strip(headers, &MEANT_FOR_PROXY);
    if wants_trailers {
        headers.insert(header::TE, HeaderValue::from_static("trailers"));
    }
}

/// Removes from a response what was meant for the proxy, and what would lead the client past it: an alternative service
/// of the origin (RFC 7838), such as one over HTTP/3.
pub(crate) fn strip_response(headers: &mut HeaderMap) {
    strip(headers, &NOT_OF_ORIGIN);
}

/// Whether a header that is a list has this item (RFC 9110, section 5.6.1).
pub(super) fn has_item(headers: &HeaderMap, name: &HeaderName, item: &str) -> bool {
    list_items(headers, name).any(|listed| listed.eq_ignore_ascii_case(item))
}

fn list_items<'h>(headers: &'h HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'h str> {
    headers
        .get_all(name)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
}

/// Removes hop-by-hop headers and those in `also`.
fn strip(headers: &mut HeaderMap, also: &[HeaderName]) {
    let named: Vec<HeaderName> = list_items(headers, &header::CONNECTION)
        .filter_map(|name| name.parse().ok())
        .filter(is_optional)
        .collect();
    // Most messages have none of these headers. Comparing the few names in the message costs less than looking up each
    // constant.
    let present: Vec<HeaderName> = headers
        .keys()
        .filter(|name| HOP_BY_HOP.contains(name) || also.contains(name))
        .cloned()
        .collect();
    for name in named.into_iter().chain(present) {
        headers.remove(name);
    }
}

/// Whether a Connection header may remove this header. A client that lists Host or Authorization there wants the origin to
/// see another request than the one that was checked.
fn is_optional(name: &HeaderName) -> bool {
    !matches!(
        *name,
        header::HOST
            | header::CONTENT_LENGTH
            | header::CONTENT_TYPE
            | header::CONTENT_ENCODING
            | header::AUTHORIZATION
            | header::COOKIE
    )
}

const HOP_BY_HOP: [HeaderName; 6] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    header::TE,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];
const MEANT_FOR_PROXY: [HeaderName; 3] = [
    // `upstream` sets it again while the client waits for 100 (Continue).
    header::EXPECT,
    header::PROXY_AUTHORIZATION,
    HeaderName::from_static("http2-settings"),
];
const NOT_OF_ORIGIN: [HeaderName; 5] = [
    header::PROXY_AUTHENTICATE,
    header::ALT_SVC,
    // Programs recognize the proxy's own responses by these headers.
    CODE,
    CONTACT,
    REQUEST_ID,
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::header_map as headers;

    #[test]
    fn hop_by_hop_headers_are_not_forwarded() {
        let mut request = headers(&[
            ("connection", "close, X-Mine, host"),
            ("x-mine", "1"),
            ("host", "a.test"),
            ("te", "gzip, Trailers"),
            ("upgrade", "h2c"),
            ("http2-settings", "AA"),
            ("proxy-authorization", "Basic eA=="),
            ("expect", "100-continue"),
            ("x-other", "2"),
        ]);
        strip_request(&mut request);
        let left = headers(&[("host", "a.test"), ("te", "trailers"), ("x-other", "2")]);
        assert_eq!(request, left);
    }

    #[test]
    fn a_response_names_no_alternative_service_and_has_none_of_the_proxys_headers() {
        let mut response = headers(&[
            ("alt-svc", "h3=\":443\""),
            ("keep-alive", "timeout=5"),
            ("x-peername-code", "denied"),
            ("x-peername-contact", "mallory"),
            ("x-peername-request-id", "1"),
        ]);
        strip_response(&mut response);
        assert!(response.is_empty(), "{response:?}");
    }
}
