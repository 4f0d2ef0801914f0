//! The attributes of a request that a check service may see.

use std::net::SocketAddr;

use http::header::HeaderName;
use http::{HeaderMap, HeaderValue, Method, Version};

use super::cache::CacheKey;
use super::config::sent_headers::SentHeaders;
use crate::host::HostPort;
use crate::request::buffered_body::BodyPrefix;
use crate::request::kind::RequestKind;
use crate::request::trace_context::{TraceContext, is_trace_header};

/// The attributes of a request, for one [`ask`](super::CheckClient::ask). Every host name is canonical.
#[derive(Clone, Copy, Debug)]
pub struct AuthzRequest<'a> {
    /// A tunnel or a request.
    pub kind: RequestKind,
    /// The id of the request in the audit log and in the service's log.
    pub request_id: &'a str,
    /// The true client.
    pub client: SocketAddr,
    /// The other end of the socket: the client, or the balancer that sent a PROXY header for it.
    pub peer: SocketAddr,
    /// The target of the CONNECT that opened this request's tunnel; `None` outside of a tunnel.
    pub connect: Option<&'a HostPort>,
    /// The server name in the client's TLS handshake with the proxy.
    pub sni: Option<&'a str>,
    /// The protocol that ALPN selected in this handshake.
    pub alpn: Option<&'a str>,
    /// The HTTP version of the client's request.
    pub version: Version,
    /// The method as the client sent it; CONNECT for [`RequestKind::Connect`].
    pub method: &'a Method,
    /// `http` or `https`; empty for [`RequestKind::Connect`], which has none.
    pub scheme: &'a str,
    /// The destination, and the only one to which the proxy sends this request.
    pub to: &'a HostPort,
    /// Path and query, from the first slash; empty for [`RequestKind::Connect`].
    pub path_and_query: &'a str,
    /// All headers; [`SentHeaders`] selects those that are sent.
    pub headers: &'a HeaderMap,
    /// The `traceparent` of the request's own span, which is sent to the service instead of the client's.
    pub traceparent: Option<&'a HeaderValue>,
    /// The length of the body in bytes; `None` if the request does not declare it.
    pub body_size: Option<u64>,
    /// The beginning of the body, if the configuration asks for it.
    pub body: Option<&'a BodyPrefix>,
}

impl AuthzRequest<'_> {
    /// The trace context that is sent to the service.
    pub(crate) fn trace(&self) -> Option<TraceContext> {
        match self.traceparent {
            Some(parent) => TraceContext::with_parent(parent.clone(), self.headers),
            None => TraceContext::read(self.headers),
        }
    }

    /// The key of the decision in a cache: everything that the service is sent, byte for byte, except the request id, the trace
    /// context, and the ports of client and balancer, which differ between requests that are otherwise equal. Returns `None` if
    /// the service is sent a body, even one of which no byte has been read yet: a cached decision would let it through unseen.
    pub(crate) fn to_key(self, sent: &SentHeaders) -> Option<CacheKey> {
        let has_body = |body: &BodyPrefix| !body.bytes.is_empty() || body.truncated;
        if self.body.is_some_and(has_body) {
            return None;
        }
        let mut key = Vec::with_capacity(512);
        let mut put = |field: &[u8]| {
            key.extend_from_slice(&field.len().to_le_bytes());
            key.extend_from_slice(field);
        };
        let Self {
            kind,
            client,
            peer,
            connect,
            sni,
            alpn,
            version,
            method,
            scheme,
            to,
            path_and_query,
            headers,
            body_size,
            request_id: _,
            traceparent: _,
            body: _,
        } = self;
        let connect = connect.map(|connect| connect.to_string());
        put(format!(
            "{kind:?} {} {} {version:?} {body_size:?}",
            client.ip(),
            peer.ip()
        )
        .as_bytes());
        for optional in [connect.as_deref(), sni, alpn] {
            put(optional.map_or(b"-".as_slice(), |_| b"+"));
            put(optional.unwrap_or_default().as_bytes());
        }
        put(method.as_str().as_bytes());
        put(scheme.as_bytes());
        put(to.to_string().as_bytes());
        put(path_and_query.as_bytes());
        let is_compared = |name: &HeaderName| sent.includes(name) && !is_trace_header(name);
        for (name, value) in headers.iter().filter(|(name, _)| is_compared(name)) {
            put(name.as_str().as_bytes());
            put(value.as_bytes());
        }
        Some(key.into())
    }

    /// The destination as a Host header has it: with the port only if the scheme does not imply it.
    pub(crate) fn host(&self) -> String {
        self.to.to_authority(self.scheme)
    }
}
