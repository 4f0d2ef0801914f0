//! Headers that belong to one connection and go no further (RFC 9110, section 7.6.1).

use http::header::{self, HeaderMap, HeaderName, HeaderValue};

/// Takes off a request what was meant for us.
pub(crate) fn end_request_hop(headers: &mut HeaderMap) {
    let wants_trailers = headers
        .get_all(header::TE)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|coding| coding.trim().eq_ignore_ascii_case("trailers"));
    end_hop(headers);
    // The client waits for "100 Continue" from us, and got it or an answer.
    headers.remove(header::EXPECT);
    headers.remove(header::PROXY_AUTHORIZATION);
    headers.remove(HTTP2_SETTINGS);
    if wants_trailers {
        headers.insert(header::TE, HeaderValue::from_static("trailers"));
    }
}

/// Takes off an answer what was meant for us, and what would lead the client past us: another service for the
/// same origin (RFC 7838), such as one by HTTP/3.
pub(crate) fn end_response_hop(headers: &mut HeaderMap) {
    end_hop(headers);
    headers.remove(header::PROXY_AUTHENTICATE);
    headers.remove(header::ALT_SVC);
    // By these a program knows our own answers.
    headers.remove(crate::http::error_response::CODE);
    headers.remove(crate::http::error_response::REQUEST_ID);
}

/// HTTP/2 may have a Cookie header for each cookie, HTTP/1.1 has one for all (RFC 9113, section 8.2.3).
pub(crate) fn join_cookies(headers: &mut HeaderMap) {
    let mut all = headers.get_all(header::COOKIE).iter();
    let (Some(first), Some(_)) = (all.next(), all.next()) else {
        return;
    };
    let mut joined = first.as_bytes().to_vec();
    for cookie in headers.get_all(header::COOKIE).iter().skip(1) {
        joined.extend_from_slice(b"; ");
        joined.extend_from_slice(cookie.as_bytes());
    }
    // What was a header's value is one with a semicolon too.
    if let Ok(cookies) = HeaderValue::from_bytes(&joined) {
        headers.insert(header::COOKIE, cookies);
    }
}

/// Whether an answer is a stream of events or messages, which may be far between.
pub(crate) fn is_long_lived(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE);
    kind.is_some_and(|kind| {
        let kind = kind.as_bytes().to_ascii_lowercase();
        kind.starts_with(b"text/event-stream") || kind.starts_with(b"application/grpc")
    })
}

/// Whether this header speaks of a scheme that authenticates the whole connection (RFC 4559, section 6), in a
/// challenge or in credentials.
pub(crate) fn bind_connection(headers: &HeaderMap, name: &HeaderName) -> bool {
    let all = headers.get_all(name).iter();
    // A comma may also stand in a challenge. To take its parts for challenges does no harm.
    all.flat_map(|value| value.as_bytes().split(|octet| *octet == b','))
        .filter_map(|one| one.trim_ascii().split(|octet| *octet == b' ').next())
        .any(|scheme| BINDING.iter().any(|one| scheme.eq_ignore_ascii_case(one)))
}

fn end_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .filter(is_optional)
        .collect();
    for name in named {
        headers.remove(name);
    }
    for name in HOP_BY_HOP {
        headers.remove(name);
    }
}

/// Whether a Connection header may take it away. Who names Host or Authorization there wants the origin to
/// see another request than was checked.
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

const BINDING: [&[u8]; 2] = [b"NTLM", b"Negotiate"];
const HTTP2_SETTINGS: &str = "http2-settings";
const HOP_BY_HOP: [HeaderName; 6] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    header::TE,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(all: &[(&'static str, &'static str)]) -> HeaderMap {
        let pairs = all.iter().map(|(name, value)| {
            let name = HeaderName::from_static(name);
            (name, HeaderValue::from_static(value))
        });
        pairs.collect()
    }

    #[test]
    fn what_is_for_one_connection_goes_no_further() {
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
        end_request_hop(&mut request);
        let left = headers(&[("host", "a.test"), ("te", "trailers"), ("x-other", "2")]);
        assert_eq!(request, left);
    }

    #[test]
    fn cookies_of_http2_become_one() {
        let mut request = headers(&[("cookie", "a=1"), ("x", "y"), ("cookie", "b=2; c=3")]);
        join_cookies(&mut request);
        assert_eq!(request, headers(&[("cookie", "a=1; b=2; c=3"), ("x", "y")]));
    }

    #[test]
    fn an_answer_leads_to_no_other_service_and_is_not_taken_for_ours() {
        let mut answer = headers(&[
            ("alt-svc", "h3=\":443\""),
            ("keep-alive", "timeout=5"),
            ("x-peername-code", "denied"),
            ("x-peername-request-id", "1"),
        ]);
        end_response_hop(&mut answer);
        assert!(answer.is_empty(), "{answer:?}");
    }
}
