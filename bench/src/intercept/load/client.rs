//! A client of the proxy: CONNECT, TLS that trusts one CA, requests.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::{http1, http2};
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream, lookup_host};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use x509_parser::parse_x509_certificate;

use crate::intercept::load::spec::{DOMAIN, Route, TlsLoadSpec};
use crate::intercept::origin::{BODY, HANDSHAKES_PATH};
use crate::intercept::tls;

/// The configuration that all connections of a run share.
pub(super) struct Client {
    route: Route,
    origin: SocketAddrV4,
    alpn: &'static [u8],
    tls: Arc<ClientConfig>,
}

/// A connection to one host; its certificate was verified for the host's name.
pub(super) struct Session {
    /// The value of Host; with HTTP/2 the start of the URI, `https://HOST`.
    base: String,
    /// The serial number of the certificate that the client received.
    pub(super) serial: Vec<u8>,
    sender: Sender,
}

enum Sender {
    Http1(http1::SendRequest<Empty<Bytes>>),
    Http2(http2::SendRequest<Empty<Bytes>>),
}

impl Client {
    /// A client that takes the load's route.
    pub(super) fn new(spec: &TlsLoadSpec) -> Result<Self> {
        let alpn = if spec.shape.streams > 1 {
            tls::H2
        } else {
            tls::HTTP1
        };
        Ok(Self {
            route: spec.route,
            origin: spec.origin,
            alpn,
            tls: tls::client_config(&spec.authority, alpn, spec.shape.resume)?,
        })
    }

    /// A client that bypasses the proxy. In a jail there is no such route, and it resolves the host like the others.
    pub(super) fn to_origin(spec: &TlsLoadSpec) -> Result<Self> {
        Ok(Self {
            route: match spec.route {
                Route::Proxy(_) => Route::Direct,
                other => other,
            },
            origin: spec.origin,
            alpn: tls::HTTP1,
            tls: tls::client_config(&spec.root, tls::HTTP1, false)?,
        })
    }

    /// Queries how many TLS handshakes the origin has completed.
    pub(super) async fn handshakes(&self) -> Result<u64> {
        let mut session = self.open("count").await.context("query the origin")?;
        let body = session
            .get(HANDSHAKES_PATH)
            .await
            .context("query the origin")?;
        let count = std::str::from_utf8(&body)?.parse()?;
        Ok(count)
    }

    /// Opens a connection completely.
    pub(super) async fn open(&self, host: &str) -> Result<Session> {
        let stream = self.connect(0, host).await?;
        self.handshake(stream, host).await
    }

    /// Opens the TCP connection for this host. Connections to a proxy take turns at the client addresses by their
    /// `number`, see [`CLIENT_ADDRESSES`].
    pub(super) async fn connect(&self, number: usize, host: &str) -> Result<TcpStream> {
        let socket = TcpSocket::new_v4().context("socket")?;
        let target = match self.route {
            Route::Direct => SocketAddr::V4(self.origin),
            Route::Proxy(address) => SocketAddr::V4(address),
            Route::Resolve => resolve(host, self.origin.port()).await?,
        };
        if matches!(self.route, Route::Proxy(_)) {
            let last_byte = (number % CLIENT_ADDRESSES) as u8 + 1;
            let source = Ipv4Addr::new(127, 1, 0, last_byte);
            let bound = socket.bind(SocketAddr::from((source, 0)));
            bound.with_context(|| format!("bind to {source}"))?;
        }
        let stream = socket.connect(target).await;
        let stream = stream.with_context(|| format!("connect to {target}"))?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    /// Does the TLS handshake with a host below [`DOMAIN`], through the proxy's tunnel if there is a proxy.
    pub(super) async fn handshake(&self, mut stream: TcpStream, host: &str) -> Result<Session> {
        let name = format!("{host}.{DOMAIN}");
        if matches!(self.route, Route::Proxy(_)) {
            request_tunnel(&mut stream, &name).await?;
        }
        let server = ServerName::try_from(name.clone())?;
        let connector = TlsConnector::from(self.tls.clone());
        let stream = connector.connect(server, stream).await.context("TLS")?;
        let (_, state) = stream.get_ref();
        let agreed = state.alpn_protocol().unwrap_or(tls::HTTP1);
        ensure!(
            agreed == self.alpn,
            "offered {}, and {} was chosen",
            self.alpn.escape_ascii(),
            agreed.escape_ascii()
        );
        let certificates = state.peer_certificates().unwrap_or_default();
        let leaf = certificates.first().context("no certificate")?;
        let (_, leaf) = parse_x509_certificate(leaf).context("the certificate")?;
        let serial = leaf.raw_serial().to_vec();
        Session::new(stream, &name, serial, self.alpn).await
    }
}

/// Resolves the name of a host below [`DOMAIN`], as the C library does it.
async fn resolve(host: &str, port: u16) -> Result<SocketAddr> {
    let name = format!("{host}.{DOMAIN}");
    let addresses = lookup_host((name.as_str(), port)).await;
    let mut addresses = addresses.with_context(|| format!("resolve {name}"))?;
    let first = addresses.find(SocketAddr::is_ipv4);
    first.with_context(|| format!("{name} has no IPv4 address"))
}

/// Requests a tunnel from the proxy and reads exactly its response.
async fn request_tunnel(stream: &mut TcpStream, name: &str) -> Result<()> {
    let request = format!("CONNECT {name}:443 HTTP/1.1\r\nHost: {name}:443\r\n\r\n");
    stream
        .write_all(request.as_bytes())
        .await
        .context("CONNECT")?;
    let mut response = Vec::new();
    while !response.ends_with(b"\r\n\r\n") {
        ensure!(
            response.len() < MAX_RESPONSE_BYTES,
            "the response to CONNECT is too long"
        );
        let count = stream.read_buf(&mut response).await.context("CONNECT")?;
        ensure!(count > 0, "closed instead of a response to CONNECT");
    }
    ensure!(
        response.starts_with(b"HTTP/1.1 200") || response.starts_with(b"HTTP/1.0 200"),
        "CONNECT was answered {}",
        response.escape_ascii()
    );
    Ok(())
}

impl Session {
    async fn new(
        stream: TlsStream<TcpStream>,
        name: &str,
        serial: Vec<u8>,
        alpn: &[u8],
    ) -> Result<Self> {
        let stream = TokioIo::new(stream);
        let is_h2 = alpn == tls::H2;
        // The result of the connection task is not needed: a pending request reports a failure.
        let sender = if is_h2 {
            let (sender, connection) = http2::handshake(TokioExecutor::new(), stream).await?;
            tokio::spawn(connection);
            Sender::Http2(sender)
        } else {
            let (sender, connection) = http1::handshake(stream).await?;
            tokio::spawn(connection);
            Sender::Http1(sender)
        };
        Ok(Self {
            base: if is_h2 {
                format!("https://{name}")
            } else {
                name.to_owned()
            },
            serial,
            sender,
        })
    }

    /// A handle for concurrent requests on the same HTTP/2 connection; None with HTTP/1.1.
    pub(super) fn new_stream(&self) -> Option<Self> {
        let Sender::Http2(sender) = &self.sender else {
            return None;
        };
        Some(Self {
            base: self.base.clone(),
            serial: self.serial.clone(),
            sender: Sender::Http2(sender.clone()),
        })
    }

    /// Sends a request and verifies the response.
    pub(super) async fn request(&mut self) -> Result<()> {
        let body = self.get("/").await?;
        ensure!(body == BODY, "the body is not the origin's");
        Ok(())
    }

    async fn get(&mut self, path: &str) -> Result<Bytes> {
        let response = match &mut self.sender {
            Sender::Http1(sender) => {
                let request = Request::get(path).header("host", &self.base);
                let request = request.body(Empty::new())?;
                sender.ready().await?;
                sender.send_request(request).await
            }
            Sender::Http2(sender) => {
                let request = Request::get(format!("{}{path}", self.base)).body(Empty::new())?;
                sender.ready().await?;
                sender.send_request(request).await
            }
        };
        read_body(response.context("no answer")?).await
    }
}

/// Reads a bounded body and checks the status.
async fn read_body(response: Response<Incoming>) -> Result<Bytes> {
    let status = response.status();
    let body = Limited::new(response.into_body(), MAX_RESPONSE_BYTES)
        .collect()
        .await;
    let body = body
        .map_err(anyhow::Error::from_boxed)
        .context("the body")?
        .to_bytes();
    ensure!(
        status == 200,
        "the answer is {status}: {}",
        body.escape_ascii()
    );
    Ok(body)
}

/// The number of client addresses. There are many, because some proxies limit what one client may cause in a second, above
/// all new certificates.
const CLIENT_ADDRESSES: usize = 250;

/// The maximum size of a response head, or of a body.
const MAX_RESPONSE_BYTES: usize = 16 * 1024;
