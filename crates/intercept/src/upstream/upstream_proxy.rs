//! A proxy on the way to all origins (`--upstream-proxy`).

use std::str::FromStr;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Uri, header};
use http_body_util::Empty;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::Fault;
use crate::host::HostPort;
use crate::request::id;

/// An HTTP proxy that is asked for tunnels by CONNECT, and for `http:` in absolute form.
#[derive(Clone)]
pub struct Parent {
    at: HostPort,
    /// The value of Proxy-Authorization.
    authorization: Option<HeaderValue>,
}

/// Not a URL of a proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("use http://HOST:PORT or http://USER:PASSWORD@HOST:PORT")]
pub struct NotAParent;

impl FromStr for Parent {
    type Err = NotAParent;

    fn from_str(text: &str) -> Result<Self, NotAParent> {
        let uri: Uri = text.parse().map_err(|_| NotAParent)?;
        if uri.scheme_str() != Some("http") || uri.path() != "/" || uri.query().is_some() {
            return Err(NotAParent);
        }
        let authority = uri.authority().ok_or(NotAParent)?.as_str();
        let (user, at) = match authority.rsplit_once('@') {
            Some((user, at)) => (Some(user), at),
            None => (None, authority),
        };
        let at = HostPort::parse_or(at, 80).map_err(|_| NotAParent)?;
        let authorization = match user {
            Some(user) => Some(basic(user).ok_or(NotAParent)?),
            None => None,
        };
        Ok(Self { at, authorization })
    }
}

/// The password may be in percent encoding, as in any URL.
fn basic(user: &str) -> Option<HeaderValue> {
    let mut octets = Vec::new();
    let mut rest = user.bytes();
    while let Some(octet) = rest.next() {
        octets.push(match octet {
            b'%' => {
                let digits = [rest.next()?, rest.next()?];
                u8::from_str_radix(str::from_utf8(&digits).ok()?, 16).ok()?
            }
            plain => plain,
        });
    }
    let mut value = HeaderValue::try_from(format!("Basic {}", STANDARD.encode(octets))).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// Without the password.
impl std::fmt::Debug for Parent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "http://{}", self.at)
    }
}

impl Parent {
    pub(super) fn at(&self) -> &HostPort {
        &self.at
    }

    /// Adds to a request what is for the parent: who asks, and that it came through here, so that two proxies
    /// that send requests to each other find out.
    pub(super) fn sign(&self, headers: &mut HeaderMap) {
        headers.insert(header::VIA, HeaderValue::from_static(id::via()));
        if let Some(value) = &self.authorization {
            headers.insert(header::PROXY_AUTHORIZATION, value.clone());
        }
    }

    /// Asks for a tunnel.
    pub(super) async fn tunnel(
        &self,
        socket: TcpStream,
        to: &HostPort,
    ) -> Result<TcpStream, Fault> {
        let mut request = Request::connect(to.to_string())
            .header(header::HOST, to.to_string())
            .body(Empty::<Bytes>::new())
            .map_err(|error| Fault::Parent(error.to_string()))?;
        self.sign(request.headers_mut());
        let of_http = |error: hyper::Error| Fault::Parent(format!("gave no answer: {error}"));
        let asked = async {
            let (mut sender, connection) = http1::handshake(TokioIo::new(socket))
                .await
                .map_err(of_http)?;
            let answer = async {
                let answer = sender.send_request(request).await.map_err(of_http)?;
                match answer.status() {
                    status if status.is_success() => Ok(()),
                    status => Err(Fault::ParentRefused(status.as_u16())),
                }
            };
            // Once it has agreed, the connection is no HTTP any more and comes back.
            let connection = async { connection.without_shutdown().await.map_err(of_http) };
            let ((), parts) = tokio::try_join!(answer, connection)?;
            match parts.read_buf.is_empty() {
                true => Ok(parts.io.into_inner()),
                false => Err(Fault::Parent(
                    "said something before it was asked".to_owned(),
                )),
            }
        };
        let asked = timeout(LIMIT, asked).await;
        asked.unwrap_or_else(|_| Err(Fault::Parent(format!("gave no answer within {LIMIT:?}"))))
    }
}

/// It has to connect to the origin before it answers.
const LIMIT: Duration = Duration::from_secs(15);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_of_a_proxy_with_and_without_a_user() {
        let parent: Parent = "http://proxy.test:3128".parse().unwrap();
        assert_eq!(format!("{parent:?}"), "http://proxy.test:3128");
        assert!(parent.authorization.is_none());
        let parent: Parent = "http://us%65r:p%40ss@192.0.2.1:3128".parse().unwrap();
        assert_eq!(
            format!("{parent:?}"),
            "http://192.0.2.1:3128",
            "no password in it"
        );
        // printf 'user:p@ss' | base64
        assert_eq!(parent.authorization.unwrap(), "Basic dXNlcjpwQHNz");
        for wrong in [
            "proxy.test:3128",
            "https://proxy.test:3128",
            "socks5://proxy.test:1080",
            "http://proxy.test:3128/path",
            "http://us%er@proxy.test:3128",
        ] {
            assert!(wrong.parse::<Parent>().is_err(), "{wrong}");
        }
    }
}
