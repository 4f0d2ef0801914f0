//! What a check service may be told about one request.

use std::net::SocketAddr;

use bytes::Bytes;
use http::{HeaderMap, Method, Version};

/// Everything that a check may see. Plain data, borrowed for the length of one
/// [`ask`](super::Client::ask); the core has made every name canonical before.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// What is asked for.
    pub kind: Kind,
    /// Names this request in our log and in the service's.
    pub request_id: &'a str,
    /// The true client.
    pub client: SocketAddr,
    /// Who is at the other end of our socket: the client, or the balancer that spoke for it.
    pub peer: SocketAddr,
    /// What CONNECT asked for, of this request's tunnel; `None` outside one.
    pub connect: Option<Authority<'a>>,
    /// The server name of the client's TLS handshake with us.
    pub sni: Option<&'a str>,
    /// The protocol that this handshake agreed on.
    pub alpn: Option<&'a str>,
    /// The version in which the client speaks HTTP.
    pub version: Version,
    /// As the client sent it; CONNECT for [`Kind::Connect`].
    pub method: &'a Method,
    /// `http` or `https`; empty for [`Kind::Connect`], which has none.
    pub scheme: &'a str,
    /// Where the request will go: what is checked is what is connected to.
    pub to: Authority<'a>,
    /// From the first slash; empty for [`Kind::Connect`].
    pub path_and_query: &'a str,
    /// As they came. Which of them are sent is up to [`Sent`](super::Sent).
    pub headers: &'a HeaderMap,
    /// Octets of the body; `None` when its length is not known beforehand.
    pub body_size: Option<u64>,
    /// The beginning of the body, where the configuration asks for it.
    pub body: Option<Prefix<'a>>,
}

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A tunnel.
    Connect,
    /// One request, inside a tunnel or not.
    Request,
}

impl Kind {
    /// `connect` or `request`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Request => "request",
        }
    }
}

/// A host, without brackets, and a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Authority<'a> {
    /// Lower-case name or address.
    pub host: &'a str,
    /// Never left out.
    pub port: u16,
}

/// The beginning of a body.
#[derive(Clone, Copy, Debug)]
pub struct Prefix<'a> {
    /// At most as many as [`CheckConfig::body`](super::CheckConfig::body).
    pub bytes: &'a Bytes,
    /// Whether there is more.
    pub truncated: bool,
}

impl std::fmt::Display for Authority<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

impl Question<'_> {
    /// What a Host header says of where it goes: the port only where the scheme doesn't imply it.
    pub(crate) fn host(&self) -> String {
        let mut written = self.to.to_string();
        let implied = match self.scheme {
            "https" => ":443",
            "http" => ":80",
            _ => return written,
        };
        if written.ends_with(implied) {
            written.truncate(written.len() - implied.len());
        }
        written
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_has_the_port_that_its_scheme_does_not_imply() {
        let (id, method, headers) = ("1", Method::GET, HeaderMap::new());
        let question = |scheme, host, port| {
            Question {
                kind: Kind::Request,
                request_id: id,
                client: ([192, 0, 2, 1], 1).into(),
                peer: ([192, 0, 2, 1], 1).into(),
                connect: None,
                sni: None,
                alpn: None,
                version: Version::HTTP_11,
                method: &method,
                scheme,
                to: Authority { host, port },
                path_and_query: "/",
                headers: &headers,
                body_size: Some(0),
                body: None,
            }
            .host()
        };
        assert_eq!(question("https", "a.test", 443), "a.test");
        assert_eq!(question("https", "a.test", 80), "a.test:80");
        assert_eq!(question("https", "a.test", 1443), "a.test:1443");
        assert_eq!(question("http", "2001:db8::1", 80), "[2001:db8::1]");
        assert_eq!(question("", "a.test", 443), "a.test:443");
    }
}
