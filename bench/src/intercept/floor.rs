//! `intercept-floor`: what no proxy that opens TLS can be under, where each connection is to a new host.
//!
//! For a connection it answers CONNECT, shakes hands with the client and with the origin, and carries octets
//! between them. That is TLS of the same library as the generator's and little else: one certificate is good
//! for every client, so none is made; the origin's address is given, so no name is looked up; no HTTP is read;
//! nothing is kept. It is not a proxy to use.

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

use crate::intercept::load::DOMAIN;
use crate::intercept::{authority, serving, tls};

/// `peername-bench intercept-floor`
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Where to listen
    #[arg(long, value_name = "ADDR")]
    listen: SocketAddr,
    /// Where to connect to, whatever a client asks for
    #[arg(long, value_name = "ADDR")]
    origin: SocketAddr,
    /// The authority whose certificate clients are shown, PEM
    #[arg(long, value_name = "FILE")]
    certificate: PathBuf,
    /// That authority's key, PEM
    #[arg(long, value_name = "FILE")]
    key: PathBuf,
    /// The authority that certifies the origin's hosts, PEM. It is believed by itself: a proxy need not verify
    /// its certificate for each host, as thousands have it in common
    #[arg(long, value_name = "FILE")]
    issuer: PathBuf,
}

/// Serves until it is killed.
///
/// # Errors
/// The address can't be listened on, or a file is not what it should be.
pub(crate) fn run(args: &Args) -> Result<()> {
    let floor = Floor {
        origin: args.origin,
        acceptor: TlsAcceptor::from(unresumed(args)?),
        connector: TlsConnector::from(tls::client(&args.issuer, tls::HTTP1, false)?),
    };
    serving::run(args.listen, |client| {
        let floor = floor.clone();
        async move {
            match floor.open(client).await {
                Ok((client, origin)) => carry(client, origin).await,
                Err(error) => eprintln!("{error:#}"),
            }
        }
    })
}

/// Tickets are work, and nobody must send any.
fn unresumed(args: &Args) -> Result<Arc<ServerConfig>> {
    let certified = authority::wildcard(DOMAIN, &args.certificate, &args.key)?;
    let mut config = tls::server(Arc::new(SingleCertAndKey::from(certified)))?;
    let only = Arc::make_mut(&mut config);
    only.send_tls13_tickets = 0;
    only.session_storage = Arc::new(NoServerSessionStorage {});
    Ok(config)
}

#[derive(Clone)]
struct Floor {
    origin: SocketAddr,
    acceptor: TlsAcceptor,
    connector: TlsConnector,
}

impl Floor {
    /// Both handshakes at once: what waits for one side is done for the other meanwhile.
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

/// Whom the client wants to speak with. It waits for the answer, so nothing follows the blank line.
async fn read_connect(client: &mut TcpStream) -> Result<ServerName<'static>> {
    let mut head = [0; LONGEST_HEAD];
    let mut length = 0;
    while !head[..length].ends_with(b"\r\n\r\n") {
        let count = client.read(&mut head[length..]).await;
        let count = count.context("read CONNECT")?;
        ensure!(count > 0, "no whole CONNECT within {LONGEST_HEAD} octets");
        length += count;
    }
    let head = std::str::from_utf8(&head[..length]).context("CONNECT")?;
    let host = head
        .strip_prefix("CONNECT ")
        .and_then(|target| target.split_once(':'));
    let (host, _) = host.context("a request other than CONNECT")?;
    Ok(ServerName::try_from(host.to_owned())?)
}

/// Whoever ends first ends both, as a client does that has its answer. How is no matter: the generator
/// complains of an answer that is not whole.
async fn carry(client: server::TlsStream<TcpStream>, origin: client::TlsStream<TcpStream>) {
    let (mut from_client, mut to_client) = split(client);
    let (mut from_origin, mut to_origin) = split(origin);
    let there = pin!(copy(&mut from_client, &mut to_origin));
    let back = pin!(copy(&mut from_origin, &mut to_client));
    select(there, back).await;
}

/// Of CONNECT.
const LONGEST_HEAD: usize = 1024;
