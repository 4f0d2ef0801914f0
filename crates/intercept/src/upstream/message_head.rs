//! Heads of requests as a connection needs them, and what heads of requests and responses say about the connection.

use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::uri::{Authority, Parts, PathAndQuery, Scheme};
use http::{Request, Uri, Version};
use hyper::body::Body;

use super::idle_pool::PoolKey;

/// The form of request that a connection needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestForm {
    pub(super) http2: bool,
    /// Whether an HTTP/1 request is in absolute form, for an upstream proxy.
    pub(super) absolute: bool,
}

/// Writes the target of a request into its head: HTTP/1.1 has the path in the request line and a Host header, HTTP/2 has
/// all of it in the URI.
pub(super) fn write_target<B: Body>(request: &mut Request<B>, key: &PoolKey, form: RequestForm) {
    let path = request.uri().path_and_query().cloned();
    let authority = key.to.to_authority(key.tls);
    let mut parts = Parts::default();
    if form.http2 || form.absolute {
        parts.scheme = Some(if key.tls { Scheme::HTTPS } else { Scheme::HTTP });
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
        // A first attempt over HTTP/1.1 may have set it.
        request.headers_mut().remove(header::TRANSFER_ENCODING);
    } else {
        *request.version_mut() = Version::HTTP_11;
        join_cookies(request.headers_mut());
        // A host has no byte that is not allowed in a header.
        if let Ok(host) = HeaderValue::try_from(authority) {
            request.headers_mut().insert(header::HOST, host);
        }
        // hyper would take a GET without a length for one without a body.
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
    let mut all = headers.get_all(header::COOKIE).iter();
    let (Some(first), Some(_)) = (all.next(), all.next()) else {
        return;
    };
    let mut joined = first.as_bytes().to_vec();
    for cookie in headers.get_all(header::COOKIE).iter().skip(1) {
        joined.extend_from_slice(b"; ");
        joined.extend_from_slice(cookie.as_bytes());
    }
    // Valid header values joined by semicolons are a valid header value: this can't fail.
    if let Ok(cookies) = HeaderValue::from_bytes(&joined) {
        headers.insert(header::COOKIE, cookies);
    }
}

/// Whether a message is a stream of events or messages, which may be far between.
pub(crate) fn is_streaming(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE);
    kind.is_some_and(|kind| {
        let kind = kind.as_bytes().to_ascii_lowercase();
        STREAMING_TYPES.iter().any(|one| kind.starts_with(one))
    })
}

/// Whether this header, a challenge or credentials, names a scheme that authenticates the whole connection (RFC 4559,
/// section 6).
pub(super) fn authenticates_connection(headers: &HeaderMap, name: &HeaderName) -> bool {
    // A comma may also be inside a challenge. To take its parts for challenges does no harm.
    headers
        .get_all(name)
        .iter()
        .flat_map(|value| value.as_bytes().split(|byte| *byte == b','))
        .filter_map(|one| one.trim_ascii().split(|byte| *byte == b' ').next())
        .any(|scheme| {
            CONNECTION_SCHEMES
                .iter()
                .any(|one| scheme.eq_ignore_ascii_case(one))
        })
}

/// What makes the length of a response's body ambiguous (RFC 9112, section 6.3). hyper reads such a response by its
/// Transfer-Encoding, and would forward the Content-Length too.
pub(super) fn framing_error(headers: &HeaderMap) -> Option<&'static str> {
    let mut codings = headers.get_all(header::TRANSFER_ENCODING).iter();
    match (codings.next(), codings.next()) {
        (None, _) => None,
        (Some(_), _) if headers.contains_key(header::CONTENT_LENGTH) => {
            Some("an answer with Transfer-Encoding and Content-Length")
        }
        (Some(one), None) if one.as_bytes().eq_ignore_ascii_case(b"chunked") => None,
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

    fn headers(all: &[(&'static str, &'static str)]) -> HeaderMap {
        let pairs = all.iter().map(|(name, value)| {
            let name = HeaderName::from_static(name);
            (name, HeaderValue::from_static(value))
        });
        pairs.collect()
    }

    #[test]
    fn cookies_of_http2_become_one_header() {
        let mut request = headers(&[("cookie", "a=1"), ("x", "y"), ("cookie", "b=2; c=3")]);
        join_cookies(&mut request);
        assert_eq!(request, headers(&[("cookie", "a=1; b=2; c=3"), ("x", "y")]));
    }
}
