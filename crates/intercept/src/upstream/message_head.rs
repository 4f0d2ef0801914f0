//! The heads of messages: writes a request's head in the form that its connection needs, and reads the headers of requests and
//! responses that concern the connection.

use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::uri::{Authority, Parts, PathAndQuery, Scheme};
use http::{Request, Uri, Version};
use hyper::body::Body;

use super::idle_pool::PoolKey;

/// The form of a request's head that a connection needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestForm {
    pub(super) http2: bool,
    /// Whether an HTTP/1 request is in absolute form, for an upstream proxy.
    pub(super) absolute: bool,
}

/// Gives the head of a request the form that its connection needs: its version, its target (the path and a Host header for HTTP/1.1,
/// the whole URI for HTTP/2), and how cookies and a body of unknown length are sent.
pub(super) fn adapt_to_connection<B: Body>(
    request: &mut Request<B>,
    key: &PoolKey,
    form: RequestForm,
) {
    let path = request.uri().path_and_query().cloned();
    let scheme = if key.tls { Scheme::HTTPS } else { Scheme::HTTP };
    let authority = key.to.to_authority(scheme.as_str());
    let mut parts = Parts::default();
    if form.http2 || form.absolute {
        parts.scheme = Some(scheme);
        parts.authority = Authority::try_from(authority.as_str()).ok();
    }
    parts.path_and_query = path.or_else(|| Some(PathAndQuery::from_static("/")));
    // These parts make a valid URI in either form.
    if let Ok(uri) = Uri::from_parts(parts) {
        *request.uri_mut() = uri;
    }
    if form.http2 {
        *request.version_mut() = Version::HTTP_2;
        request.headers_mut().remove(header::HOST);
        // A first attempt over HTTP/1.1 may have set this header.
        request.headers_mut().remove(header::TRANSFER_ENCODING);
    } else {
        *request.version_mut() = Version::HTTP_11;
        join_cookies(request.headers_mut());
        // Each byte of a host is allowed in a header: this can't fail.
        if let Ok(host) = HeaderValue::try_from(authority) {
            request.headers_mut().insert(header::HOST, host);
        }
        // Without a length, hyper sends no body with a GET.
        let is_unsized = request.body().size_hint().exact().is_none();
        if is_unsized && !request.headers().contains_key(header::CONTENT_LENGTH) {
            let chunked = HeaderValue::from_static("chunked");
            let headers = request.headers_mut();
            headers.insert(header::TRANSFER_ENCODING, chunked);
        }
    }
}

/// Joins Cookie headers: HTTP/2 may have one for each cookie, HTTP/1.1 has one for all (RFC 9113, section 8.2.3).
fn join_cookies(headers: &mut HeaderMap) {
    let cookies: Vec<_> = headers
        .get_all(header::COOKIE)
        .iter()
        .map(HeaderValue::as_bytes)
        .collect();
    if cookies.len() < 2 {
        return;
    }
    let joined = cookies.join(&b"; "[..]);
    // Valid header values joined by semicolons are a valid header value: this can't fail.
    if let Ok(cookies) = HeaderValue::from_bytes(&joined) {
        headers.insert(header::COOKIE, cookies);
    }
}

/// Whether the body is a stream of events or messages, with pauses of any length.
pub(crate) fn is_streaming(headers: &HeaderMap) -> bool {
    headers.get(header::CONTENT_TYPE).is_some_and(|value| {
        let mut media_type = value.as_bytes().to_ascii_lowercase();
        media_type.retain(|byte| !byte.is_ascii_whitespace());
        STREAMING_TYPES
            .iter()
            .any(|streaming| media_type.starts_with(streaming))
    })
}

/// Whether this header, a challenge or credentials, names a scheme that authenticates the whole connection (RFC 4559,
/// section 6).
pub(super) fn authenticates_connection(headers: &HeaderMap, name: &HeaderName) -> bool {
    // A comma may also be inside a challenge. The parts of that challenge are then read as challenges of their own. At worst, a
    // connection that could be shared is kept for one client.
    headers
        .get_all(name)
        .iter()
        .flat_map(|value| value.as_bytes().split(|byte| *byte == b','))
        .filter_map(|challenge| challenge.trim_ascii().split(|byte| *byte == b' ').next())
        .any(|scheme| {
            CONNECTION_SCHEMES
                .iter()
                .any(|name| scheme.eq_ignore_ascii_case(name))
        })
}

/// Why the length of a response's body is ambiguous (RFC 9112, section 6.3); `None` if it is not. hyper reads such a body by its
/// Transfer-Encoding, and would forward Content-Length, too.
pub(super) fn framing_error(headers: &HeaderMap) -> Option<&'static str> {
    let mut codings = headers.get_all(header::TRANSFER_ENCODING).iter();
    match (codings.next(), codings.next()) {
        (None, _) => None,
        (Some(_), _) if headers.contains_key(header::CONTENT_LENGTH) => {
            Some("an answer with Transfer-Encoding and Content-Length")
        }
        (Some(coding), None) if coding.as_bytes().eq_ignore_ascii_case(b"chunked") => None,
        _ => Some("an answer with a Transfer-Encoding other than chunked"),
    }
}

const STREAMING_TYPES: [&[u8]; 5] = [
    b"text/event-stream",
    b"application/grpc",
    b"application/connect+",
    b"application/x-ndjson",
    b"application/json;stream=watch",
];
const CONNECTION_SCHEMES: [&[u8]; 2] = [b"NTLM", b"Negotiate"];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::header_map as headers;

    #[test]
    fn parameter_of_a_streaming_type_may_follow_a_space() {
        for media_type in [
            "application/json;stream=watch",
            "application/json; stream=watch",
        ] {
            assert!(is_streaming(&headers(&[("content-type", media_type)])));
        }
        assert!(!is_streaming(&headers(&[(
            "content-type",
            "application/json"
        )])));
    }

    #[test]
    fn cookies_of_http2_become_one_header() {
        let mut request = headers(&[("cookie", "a=1"), ("x", "y"), ("cookie", "b=2; c=3")]);
        join_cookies(&mut request);
        assert_eq!(request, headers(&[("cookie", "a=1; b=2; c=3"), ("x", "y")]));
    }
}
