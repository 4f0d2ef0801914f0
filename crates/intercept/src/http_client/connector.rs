//! Connects to a server: over TCP or a Unix socket, with TLS or without.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use http::uri::Scheme;
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::rt::TokioIo;
use peername_sys::fs::{is_replaceable, open_path};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tonic::codegen::Service;

use super::tls::ClientTls;

/// The address of a server, and the TLS configuration for it.
#[derive(Clone, Debug)]
pub(crate) struct Endpoint {
    /// The URI of requests, with the scheme `http` or `https`; its host is `localhost` for a Unix socket.
    pub(crate) uri: Uri,
    /// The Unix socket; `None` for TCP.
    pub(crate) socket: Option<ServerSocket>,
    /// Set if and only if the scheme is `https`.
    pub(crate) tls: Option<ClientTls>,
}

/// The Unix socket of a server.
#[derive(Clone, Debug)]
pub(crate) struct ServerSocket {
    path: PathBuf,
    /// The socket to connect to, whatever is at the path later; `None` for whichever socket is at the path.
    pinned: Option<Arc<File>>,
}

/// The connector of one server.
#[derive(Clone, Debug)]
pub(crate) struct Connector {
    endpoint: Arc<Endpoint>,
    tcp: HttpConnector,
    tls: Option<(Arc<rustls::ClientConfig>, ServerName<'static>)>,
    /// How long connecting may take, TLS handshake included.
    timeout: Duration,
}

/// The TLS handshake with a server failed.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct TlsFailed(String);

type ConnectFuture = Pin<Box<dyn Future<Output = io::Result<TokioIo<Box<dyn Stream>>>> + Send>>;

/// A connection's byte stream: TCP or a Unix socket, with TLS or without.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

impl Endpoint {
    pub(crate) fn is_https(&self) -> bool {
        self.uri.scheme() == Some(&Scheme::HTTPS)
    }
}

impl ServerSocket {
    pub(crate) fn new(path: &str) -> Self {
        Self {
            path: path.into(),
            pinned: None,
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Pins the socket that is at the path now, if this process's user could put another one there.
    pub(crate) fn pin_if_replaceable(&mut self) -> io::Result<()> {
        // Links are resolved once: the program may replace a link where it can't replace the socket.
        self.path = resolve_links(&self.path)?;
        if is_replaceable(&self.path) {
            self.pinned = Some(Arc::new(open_path(&self.path)?));
        }
        Ok(())
    }

    async fn connect(&self) -> io::Result<UnixStream> {
        match &self.pinned {
            Some(file) => UnixStream::connect(format!("/proc/self/fd/{}", file.as_raw_fd())).await,
            None => UnixStream::connect(&self.path).await,
        }
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
            tls: tls.map(|(tls, name)| (tls.with_alpn(alpn), name)),
            timeout,
        }
    }

    /// Opens a connection.
    ///
    /// # Errors
    ///
    /// Those of connect(2) and of name resolution; [`io::ErrorKind::TimedOut`]; an error that wraps [`TlsFailed`].
    pub(crate) async fn connect(&self) -> io::Result<Box<dyn Stream>> {
        timeout(self.timeout, self.open())
            .await
            .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }

    async fn open(&self) -> io::Result<Box<dyn Stream>> {
        let stream: Box<dyn Stream> = match &self.endpoint.socket {
            Some(socket) => Box::new(socket.connect().await?),
            None => {
                let connected = self.tcp.clone().call(self.endpoint.uri.clone()).await;
                Box::new(connected.map_err(io::Error::other)?.into_inner())
            }
        };
        let Some((config, name)) = self.tls.clone() else {
            if self.endpoint.is_https() {
                let detail = "the URL's host is no name that a certificate can have";
                return Err(tls_failed(detail));
            }
            return Ok(stream);
        };
        match TlsConnector::from(config).connect(name, stream).await {
            Ok(encrypted) => Ok(Box::new(encrypted)),
            Err(error) => Err(tls_failed(&error.to_string())),
        }
    }
}

/// Returns the path without symbolic links. What is missing at its end is kept as it is, unless it is a link itself.
fn resolve_links(path: &Path) -> io::Result<PathBuf> {
    match path.canonicalize() {
        Err(error) if error.kind() == io::ErrorKind::NotFound && !path.is_symlink() => {
            let path = std::path::absolute(path)?;
            match (path.parent(), path.file_name()) {
                (Some(directory), Some(name)) => Ok(resolve_links(directory)?.join(name)),
                _ => Err(error),
            }
        }
        resolved => resolved,
    }
}

fn tls_failed(detail: &str) -> io::Error {
    io::Error::other(TlsFailed(detail.to_owned()))
}

impl Service<Uri> for Connector {
    type Response = TokioIo<Box<dyn Stream>>;
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

impl Connection for Box<dyn Stream> {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}
