//! An upstream proxy on the path to all origins (`--upstream-proxy`).

mod head_reader;

use std::str::FromStr;
use std::time::Duration;

use bytes::Bytes;
use data_encoding::{BASE64, HEXLOWER_PERMISSIVE};
use http::{HeaderMap, HeaderValue, Request, Uri, header};
use http_body_util::Empty;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::error::UpstreamError;
use crate::host::HostPort;
use crate::request::via::{self, ViaLines};
use head_reader::HeadReader;

/// An HTTP proxy. It is sent a CONNECT for each tunnel and each connection with TLS, and other requests in absolute
/// form.
#[derive(Clone)]
pub struct UpstreamProxy {
    host_port: HostPort,
    /// The value of Proxy-Authorization.
    authorization: Option<HeaderValue>,
}

/// Not the URL of a proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("use http://HOST:PORT or http://USER:PASSWORD@HOST:PORT")]
pub struct ParseUpstreamProxyError;

impl FromStr for UpstreamProxy {
    type Err = ParseUpstreamProxyError;

    fn from_str(text: &str) -> Result<Self, ParseUpstreamProxyError> {
        let uri: Uri = text.parse().map_err(|_| ParseUpstreamProxyError)?;
        if uri.scheme_str() != Some("http") || uri.path() != "/" || uri.query().is_some() {
            return Err(ParseUpstreamProxyError);
        }
        let authority = uri.authority().ok_or(ParseUpstreamProxyError)?.as_str();
        let (user_info, host_port) = match authority.rsplit_once('@') {
            Some((user_info, host_port)) => (Some(user_info), host_port),
            None => (None, authority),
        };
        let authorization = match user_info {
            Some(user_info) => Some(basic_credentials(user_info).ok_or(ParseUpstreamProxyError)?),
            None => None,
        };
        Ok(Self {
            host_port: HostPort::parse_or(host_port, 80).map_err(|_| ParseUpstreamProxyError)?,
            authorization,
        })
    }
}

/// The value of Proxy-Authorization for `USER:PASSWORD`, percent-encoded as in any URL. Without a colon the password is empty.
fn basic_credentials(user_info: &str) -> Option<HeaderValue> {
    let mut bytes = Vec::new();
    let mut rest = user_info.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digits = [rest.next()?, rest.next()?];
                *HEXLOWER_PERMISSIVE.decode(&digits).ok()?.first()?
            }
            plain => plain,
        });
    }
    if !bytes.contains(&b':') {
        bytes.push(b':');
    }
    let mut value = HeaderValue::try_from(format!("Basic {}", BASE64.encode(&bytes))).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// Leaves out user name and password.
impl std::fmt::Debug for UpstreamProxy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "http://{}", self.host_port)
    }
}

impl UpstreamProxy {
    pub(super) fn host_port(&self) -> &HostPort {
        &self.host_port
    }

    /// Adds the headers for the upstream proxy: credentials, and Via, by which proxies that forward requests to each other
    /// detect the loop.
    pub(super) fn add_proxy_headers(&self, headers: &mut HeaderMap) {
        via::add_to(headers);
        if let Some(value) = &self.authorization {
            headers.insert(header::PROXY_AUTHORIZATION, value.clone());
        }
    }

    /// Opens a tunnel with CONNECT, within [`CONNECT_TIMEOUT`]. `via`: the Via lines of the client's CONNECT.
    pub(super) async fn open_tunnel(
        &self,
        socket: TcpStream,
        to: &HostPort,
        via: &ViaLines,
    ) -> Result<TcpStream, UpstreamError> {
        let mut request = Request::connect(to.to_string())
            .header(header::HOST, to.to_string())
            .body(Empty::<Bytes>::new())
            .map_err(|error| UpstreamError::Proxy(error.to_string()))?;
        for line in via.iter() {
            request.headers_mut().append(header::VIA, line.clone());
        }
        self.add_proxy_headers(request.headers_mut());
        timeout(CONNECT_TIMEOUT, send_connect(socket, request))
            .await
            .unwrap_or_else(|_| {
                Err(UpstreamError::Proxy(format!(
                    "gave no answer within {CONNECT_TIMEOUT:?}"
                )))
            })
    }
}

/// Sends a CONNECT, and returns the socket after a successful response.
async fn send_connect(
    socket: TcpStream,
    request: Request<Empty<Bytes>>,
) -> Result<TcpStream, UpstreamError> {
    let failed = |error: hyper::Error| UpstreamError::Proxy(format!("gave no answer: {error}"));
    let (reader, writer) = socket.into_split();
    let head_only = tokio::io::join(HeadReader::new(reader), writer);
    let (mut sender, connection) = http1::handshake(TokioIo::new(head_only))
        .await
        .map_err(failed)?;
    let exchange = async {
        let response = sender.send_request(request).await.map_err(failed)?;
        match response.status() {
            status if status.is_success() => Ok(()),
            status => Err(UpstreamError::ProxyRefused(status.as_u16())),
        }
    };
    // hyper returns the socket once the tunnel is open.
    let connection = async { connection.without_shutdown().await.map_err(failed) };
    let ((), parts) = tokio::try_join!(exchange, connection)?;
    let (reader, writer) = parts.io.into_inner().into_inner();
    reader
        .into_inner()
        .reunite(writer)
        .map_err(|error| UpstreamError::Proxy(error.to_string()))
}

/// The timeout for the response to a CONNECT, before which the upstream proxy has to connect to the origin.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::net::TcpListener;
    use std::thread;

    use tokio::io::AsyncReadExt;

    use super::*;

    /// A server that speaks first, such as sshd: its banner may come with the proxy's response.
    #[tokio::test]
    async fn bytes_behind_the_response_are_left_in_the_socket() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let proxy = thread::spawn(move || {
            let (mut client, _) = listener.accept().unwrap();
            let head = BufReader::new(client.try_clone().unwrap()).lines();
            assert!(head.map(Result::unwrap).any(|line| line.is_empty()));
            client
                .write_all(b"HTTP/1.1 200 OK\r\nVia: proxy\r\n\r\nSSH-2.0-x\r\n\r\n")
                .unwrap();
        });
        let socket = TcpStream::connect(address).await.unwrap();
        let to = HostPort::parse("a.test:22").unwrap();
        let parent: UpstreamProxy = format!("http://{address}").parse().unwrap();
        let mut tunnel = parent
            .open_tunnel(socket, &to, &ViaLines::default())
            .await
            .unwrap();
        let mut received = String::new();
        tunnel.read_to_string(&mut received).await.unwrap();
        assert_eq!(received, "SSH-2.0-x\r\n\r\n");
        proxy.join().unwrap();
    }

    #[test]
    fn url_may_have_credentials_and_debug_leaves_them_out() {
        let proxy: UpstreamProxy = "http://proxy.test:3128".parse().unwrap();
        assert_eq!(format!("{proxy:?}"), "http://proxy.test:3128");
        assert!(proxy.authorization.is_none());
        let proxy: UpstreamProxy = "http://us%65r:p%40ss@192.0.2.1:3128".parse().unwrap();
        assert_eq!(format!("{proxy:?}"), "http://192.0.2.1:3128");
        // printf 'user:p@ss' | base64
        assert_eq!(proxy.authorization.unwrap(), "Basic dXNlcjpwQHNz");
        let proxy: UpstreamProxy = "http://user@proxy.test:3128".parse().unwrap();
        // printf 'user:' | base64
        assert_eq!(proxy.authorization.unwrap(), "Basic dXNlcjo=");
        for wrong in [
            "proxy.test:3128",
            "https://proxy.test:3128",
            "socks5://proxy.test:1080",
            "http://proxy.test:3128/path",
            "http://us%er@proxy.test:3128",
            "http://us%+5er@proxy.test:3128",
        ] {
            assert!(wrong.parse::<UpstreamProxy>().is_err(), "{wrong}");
        }
    }
}
