//! Connects to a server: over TCP or a Unix socket, with TLS or without.

use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use http::uri::Scheme;
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tonic::codegen::Service;

use super::tls::ClientTls;

/// Where a server is reached.
#[derive(Clone, Debug)]
pub(crate) struct Endpoint {
    /// The URI of requests, with the scheme `http` or `https`; its host is `localhost` for a Unix socket.
    pub(crate) uri: Uri,
    /// The Unix socket; `None` for TCP.
    pub(crate) socket: Option<PathBuf>,
    /// Set if and only if the scheme is `https`.
    pub(crate) tls: Option<ClientTls>,
}

/// The connector of one server.
#[derive(Clone, Debug)]
pub(crate) struct Connector {
    endpoint: Arc<Endpoint>,
    tcp: HttpConnector,
    tls: Option<(Arc<rustls::ClientConfig>, ServerName<'static>)>,
    /// The time for a connection, TLS handshake included.
    timeout: Duration,
}

/// The TLS handshake with a server failed.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct TlsFailed(String);

type ConnectFuture = Pin<Box<dyn Future<Output = io::Result<TokioIo<ClientStream>>> + Send>>;

/// A connection to a server.
pub(crate) struct ClientStream(Box<dyn Stream>);

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

impl Endpoint {
    pub(crate) fn is_https(&self) -> bool {
        self.uri.scheme() == Some(&Scheme::HTTPS)
    }
}

impl Connector {
    /// `alpn` is the protocol that is offered in a TLS handshake.
    pub(crate) fn new(endpoint: &Endpoint, alpn: &[u8], timeout: Duration) -> Self {
        let mut tcp = HttpConnector::new();
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(timeout));
        tcp.enforce_http(false);
        let host = endpoint.uri.host().unwrap_or_default();
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let name = ServerName::try_from(host.to_owned()).ok();
        let tls = endpoint.tls.as_ref().zip(name);
        Self {
            endpoint: Arc::new(endpoint.clone()),
            tcp,
            tls: tls.map(|(tls, name)| (tls.offering(alpn), name)),
            timeout,
        }
    }

    /// Opens a connection.
    ///
    /// # Errors
    ///
    /// Those of connect(2) and of name resolution; [`io::ErrorKind::TimedOut`]; [`TlsFailed`] inside of one.
    pub(crate) async fn connect(&self) -> io::Result<ClientStream> {
        let connected = timeout(self.timeout, self.open());
        connected
            .await
            .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }

    async fn open(&self) -> io::Result<ClientStream> {
        let stream: Box<dyn Stream> = match &self.endpoint.socket {
            Some(socket) => Box::new(UnixStream::connect(socket).await?),
            None => {
                let connected = self.tcp.clone().call(self.endpoint.uri.clone()).await;
                Box::new(connected.map_err(io::Error::other)?.into_inner())
            }
        };
        let Some((config, name)) = self.tls.clone() else {
            return match self.endpoint.is_https() {
                false => Ok(ClientStream(stream)),
                true => Err(failed(
                    "the URL's host is no name that a certificate can have",
                )),
            };
        };
        let secured = TlsConnector::from(config).connect(name, stream).await;
        let secured = secured.map_err(|error| failed(&error.to_string()))?;
        Ok(ClientStream(Box::new(secured)))
    }
}

fn failed(why: &str) -> io::Error {
    io::Error::other(TlsFailed(why.to_owned()))
}

impl Service<Uri> for Connector {
    type Response = TokioIo<ClientStream>;
    type Error = io::Error;
    type Future = ConnectFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> ConnectFuture {
        let this = self.clone();
        Box::pin(async move { this.connect().await.map(TokioIo::new) })
    }
}

impl Connection for ClientStream {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl AsyncRead for ClientStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl AsyncWrite for ClientStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(cx, bytes)
    }
}
