//! A client of the proxy: CONNECT, TLS that believes one authority, requests.

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
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use x509_parser::parse_x509_certificate;

use crate::intercept::load::{DOMAIN, Plan};
use crate::intercept::origin::{BODY, HANDSHAKES};
use crate::intercept::tls;

/// What all connections of a run have in common.
pub(super) struct Client {
    target: SocketAddrV4,
    is_proxy: bool,
    alpn: &'static [u8],
    tls: Arc<ClientConfig>,
}

/// A connection to one host, whose certificate was found good for its name.
pub(super) struct Session {
    /// The host's name, and with HTTP/2 the scheme.
    base: String,
    serial: Vec<u8>,
    sender: Sender,
}

enum Sender {
    Http1(http1::SendRequest<Empty<Bytes>>),
    Http2(http2::SendRequest<Empty<Bytes>>),
}

impl Client {
    /// # Errors
    /// The authority is not a certificate.
    pub(super) fn new(plan: &Plan) -> Result<Self> {
        let alpn = if plan.shape.streams > 1 {
            tls::H2
        } else {
            tls::HTTP1
        };
        Ok(Self {
            target: plan.proxy.unwrap_or(plan.origin),
            is_proxy: plan.proxy.is_some(),
            alpn,
            tls: tls::client(&plan.authority, alpn, plan.shape.resume)?,
        })
    }

    /// Past the proxy.
    ///
    /// # Errors
    /// The origin's authority is not a certificate.
    pub(super) fn to_origin(plan: &Plan) -> Result<Self> {
        Ok(Self {
            target: plan.origin,
            is_proxy: false,
            alpn: tls::HTTP1,
            tls: tls::client(&plan.root, tls::HTTP1, false)?,
        })
    }

    /// How many TLS handshakes the origin has completed.
    ///
    /// # Errors
    /// It can't be asked.
    pub(super) async fn handshakes(&self) -> Result<u64> {
        let mut session = self.open("count").await.context("ask the origin")?;
        let body = session.get(HANDSHAKES).await.context("ask the origin")?;
        let count = std::str::from_utf8(&body)?.parse()?;
        Ok(count)
    }

    /// All of a connection.
    ///
    /// # Errors
    /// Those of [`connect`](Self::connect) and [`handshake`](Self::handshake).
    pub(super) async fn open(&self, host: &str) -> Result<Session> {
        let stream = self.connect(0).await?;
        self.handshake(stream, host).await
    }

    /// The TCP part, to a proxy from one of [`ADDRESSES`].
    ///
    /// # Errors
    /// bind(2) or connect(2) failed.
    pub(super) async fn connect(&self, number: usize) -> Result<TcpStream> {
        let socket = TcpSocket::new_v4().context("socket")?;
        if self.is_proxy {
            let host = (number % ADDRESSES) as u8 + 1;
            let source = Ipv4Addr::new(127, 1, 0, host);
            let bound = socket.bind(SocketAddr::from((source, 0)));
            bound.with_context(|| format!("bind to {source}"))?;
        }
        let stream = socket.connect(SocketAddr::V4(self.target)).await;
        let stream = stream.with_context(|| format!("connect to {}", self.target))?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    /// CONNECT and TLS, to a host below [`DOMAIN`].
    ///
    /// # Errors
    /// The proxy refused, or the certificate is not of the authority, or not for this name, or another
    /// protocol was agreed on.
    pub(super) async fn handshake(&self, mut stream: TcpStream, host: &str) -> Result<Session> {
        let name = format!("{host}.{DOMAIN}");
        if self.is_proxy {
            connect_through(&mut stream, &name).await?;
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

/// Asks the proxy for a tunnel and reads exactly its answer.
async fn connect_through(stream: &mut TcpStream, name: &str) -> Result<()> {
    let request = format!("CONNECT {name}:443 HTTP/1.1\r\nHost: {name}:443\r\n\r\n");
    stream
        .write_all(request.as_bytes())
        .await
        .context("CONNECT")?;
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        ensure!(
            answer.len() < LONGEST_ANSWER,
            "an endless answer to CONNECT"
        );
        let count = stream.read_buf(&mut answer).await.context("CONNECT")?;
        ensure!(count > 0, "closed instead of an answer to CONNECT");
    }
    ensure!(
        answer.starts_with(b"HTTP/1.1 200") || answer.starts_with(b"HTTP/1.0 200"),
        "CONNECT was answered {}",
        answer.escape_ascii()
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
        // How a connection ends is no matter: whoever waits for an answer hears of it.
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

    /// The serial number of the certificate that was shown.
    pub(super) fn serial(&self) -> &[u8] {
        &self.serial
    }

    /// One more request on the same connection, with HTTP/2 beside others.
    pub(super) fn stream(&self) -> Option<Self> {
        let Sender::Http2(sender) = &self.sender else {
            return None;
        };
        Some(Self {
            base: self.base.clone(),
            serial: self.serial.clone(),
            sender: Sender::Http2(sender.clone()),
        })
    }

    /// Asks for what the origin has, and compares.
    ///
    /// # Errors
    /// There is no answer, or another one.
    pub(super) async fn ask(&mut self) -> Result<()> {
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
        body(response.context("no answer")?).await
    }
}

async fn body(response: Response<Incoming>) -> Result<Bytes> {
    let status = response.status();
    let body = Limited::new(response.into_body(), LONGEST_ANSWER)
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

/// Clients have as many addresses: what one of them may cause in a second, new certificates above all, is
/// limited by some proxies.
const ADDRESSES: usize = 250;

/// Of a status line with its fields, or a body.
const LONGEST_ANSWER: usize = 16 * 1024;
