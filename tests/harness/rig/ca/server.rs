//! A web server with a certificate for whatever host its client requests, by the mint of `peername intercept`.

use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::path::Path;
use std::thread;

use peername_intercept::ca::Authority;
use peername_intercept::ca::mint::Mint;
use peername_intercept::ca::mint::client_support::ClientSupport;
use peername_intercept::host::Host as Name;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::rustls::server::Acceptor;

use crate::harness::lab::Host;

/// Listens on 127.0.0.1 of `host` until the test ends, and answers every request with [`BODY`].
pub(crate) fn start(host: &Host, ca: &str) -> u16 {
    let authority = Authority::open(Path::new(ca)).expect("an authority");
    let mint = Mint::new(authority, 100).expect("a mint");
    let listener = host
        .enter(|| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))
        .expect("a port");
    let port = listener.local_addr().expect("its address").port();
    listener.set_nonblocking(true).expect("fcntl");
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.expect("a runtime").block_on(serve(listener, &mint));
    });
    port
}

async fn serve(listener: TcpListener, mint: &Mint) {
    let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
    loop {
        let (connection, _) = listener.accept().await.expect("a connection");
        // A client that rejects the certificate closes; its own output shows that.
        let _ = answer(connection, mint).await;
    }
}

async fn answer(connection: TcpStream, mint: &Mint) -> anyhow::Result<()> {
    let start = LazyConfigAcceptor::new(Acceptor::default(), connection).await?;
    let hello = start.client_hello();
    let name = hello.server_name().map(Name::from_sni).transpose()?;
    let name = name.unwrap_or_else(|| IpAddr::V4(Ipv4Addr::LOCALHOST).into());
    let config = mint
        .server_config(
            &name,
            ClientSupport::from_client_hello(&hello),
            &[b"http/1.1"],
        )
        .await?;
    let mut stream = start.into_stream(config).await?;
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        request.push(stream.read_u8().await?);
    }
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        BODY.len()
    );
    stream.write_all((head + BODY).as_bytes()).await?;
    Ok(stream.shutdown().await?)
}

/// The body that every client prints.
pub(crate) const BODY: &str = "served";
