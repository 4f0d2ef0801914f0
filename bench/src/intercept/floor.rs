//! `intercept-floor`: the lower bound for proxies that open TLS, where each connection is to a new host.
//!
//! For a connection it answers CONNECT, does the TLS handshakes with the client and with the origin, and copies bytes
//! between them. That is TLS of the same library as the generator's and little else: one certificate serves every
//! client, so none is minted; the origin's address is configured, so no name is resolved; no HTTP is parsed; nothing is
//! cached. It is not meant for use.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use futures_util::future::{select, try_join};
use rustls::ServerConfig;
use rustls::pki_types::ServerName;
use rustls::server::NoServerSessionStorage;
use rustls::sign::SingleCertAndKey;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy, split};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};

use crate::intercept::accept_loop;
use crate::intercept::certificates;
use crate::intercept::load::spec::DOMAIN;
use crate::intercept::tls;

/// The arguments of `peername-bench intercept-floor`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Where to listen
    #[arg(long, value_name = "ADDR")]
    listen: SocketAddr,
    /// Where to connect to, whatever a client requests
    #[arg(long, value_name = "ADDR")]
    origin: SocketAddr,
    /// The CA that signs the certificate for clients, PEM
    #[arg(long, value_name = "FILE")]
    certificate: PathBuf,
    /// That CA's key, PEM
    #[arg(long, value_name = "FILE")]
    key: PathBuf,
    /// The intermediate CA of the origin's hosts, PEM. It is trusted directly: a proxy need not verify its
    /// certificate for each host, as thousands of hosts share it
    #[arg(long, value_name = "FILE")]
    issuer: PathBuf,
}

/// Serves until it is killed.
pub(crate) fn run(args: &Args) -> Result<()> {
    let floor = Floor {
        origin: args.origin,
        acceptor: TlsAcceptor::from(config_without_tickets(args)?),
        connector: TlsConnector::from(tls::client_config(&args.issuer, tls::HTTP1, false)?),
    };
    accept_loop::run(args.listen, |client| {
        let floor = floor.clone();
        async move {
            match floor.open(client).await {
                Ok((client, origin)) => copy_both_ways(client, origin).await,
                Err(error) => eprintln!("{error:#}"),
            }
        }
    })
}

/// The server configuration without session tickets: they cost time, and are optional.
fn config_without_tickets(args: &Args) -> Result<Arc<ServerConfig>> {
    let certified = certificates::issue_wildcard(DOMAIN, &args.certificate, &args.key)?;
    let mut config = tls::server_config(Arc::new(SingleCertAndKey::from(certified)))?;
    let settings = Arc::make_mut(&mut config);
    settings.send_tls13_tickets = 0;
    settings.session_storage = Arc::new(NoServerSessionStorage {});
    Ok(config)
}

#[derive(Clone)]
struct Floor {
    origin: SocketAddr,
    acceptor: TlsAcceptor,
    connector: TlsConnector,
}

impl Floor {
    /// Does both handshakes concurrently: while one waits, the other one advances.
    async fn open(
        &self,
        mut client: TcpStream,
    ) -> Result<(server::TlsStream<TcpStream>, client::TlsStream<TcpStream>)> {
        let host = read_connect(&mut client).await?;
        client
            .write_all(b"HTTP/1.1 200 OK\r\n\r\n")
            .await
            .context("answer CONNECT")?;
        try_join(
            async {
                self.acceptor
                    .accept(client)
                    .await
                    .context("TLS of a client")
            },
            async {
                let origin = TcpStream::connect(self.origin).await;
                let origin = origin.with_context(|| format!("connect to {}", self.origin))?;
                origin.set_nodelay(true)?;
                let connected = self.connector.connect(host, origin).await;
                connected.context("TLS of the origin")
            },
        )
        .await
    }
}

/// Reads the target of CONNECT. The client waits for the response, so nothing follows the blank line.
async fn read_connect(client: &mut TcpStream) -> Result<ServerName<'static>> {
    let mut head = [0; MAX_HEAD_BYTES];
    let mut length = 0;
    while !head[..length].ends_with(b"\r\n\r\n") {
        let count = client.read(&mut head[length..]).await;
        let count = count.context("read CONNECT")?;
        ensure!(count > 0, "no whole CONNECT within {MAX_HEAD_BYTES} bytes");
        length += count;
    }
    let head = std::str::from_utf8(&head[..length]).context("CONNECT")?;
    let host = head
        .strip_prefix("CONNECT ")
        .and_then(|target| target.split_once(':'));
    let (host, _) = host.context("a request other than CONNECT")?;
    Ok(ServerName::try_from(host.to_owned())?)
}

/// Copies until one side ends, and then closes both: a client closes once it has its response. Errors are ignored: the
/// generator reports an incomplete response.
async fn copy_both_ways(
    client: server::TlsStream<TcpStream>,
    origin: client::TlsStream<TcpStream>,
) {
    let (mut from_client, mut to_client) = split(client);
    let (mut from_origin, mut to_origin) = split(origin);
    let upload = pin!(copy(&mut from_client, &mut to_origin));
    let download = pin!(copy(&mut from_origin, &mut to_client));
    select(upload, download).await;
}

/// The maximum size of a CONNECT request.
const MAX_HEAD_BYTES: usize = 1024;
