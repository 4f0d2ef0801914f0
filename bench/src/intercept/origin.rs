//! `intercept-origin`: the server behind the proxy. It answers every request with 1 KiB, over HTTP/1.1 or HTTP/2, and
//! reports its handshake count on request.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Result;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;

use crate::intercept::accept_loop;
use crate::intercept::certificates::HostCertificates;
use crate::intercept::tls;

/// The arguments of `peername-bench intercept-origin`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Where to listen
    #[arg(long, value_name = "ADDR")]
    listen: SocketAddr,
    /// The intermediate CA that signs its hosts' certificates, PEM
    #[arg(long, value_name = "FILE")]
    certificate: PathBuf,
    /// That CA's key, PEM
    #[arg(long, value_name = "FILE")]
    key: PathBuf,
}

/// The path that returns the number of handshakes.
pub(crate) const HANDSHAKES_PATH: &str = "/handshakes";

/// The response body of every other request.
pub(crate) const BODY: &[u8] = &[b'x'; 1024];

/// Serves until it is killed.
pub(crate) fn run(args: &Args) -> Result<()> {
    let hosts = HostCertificates::read(&args.certificate, &args.key)?;
    let acceptor = TlsAcceptor::from(tls::server_config(Arc::new(hosts))?);
    let handshakes = Arc::new(AtomicU64::new(0));
    accept_loop::run(args.listen, |stream| {
        let (acceptor, handshakes) = (acceptor.clone(), handshakes.clone());
        async move {
            // The generator reports a client that disconnects.
            let _ = serve_connection(stream, acceptor, handshakes).await;
        }
    })
}

async fn serve_connection(
    stream: TcpStream,
    acceptor: TlsAcceptor,
    handshakes: Arc<AtomicU64>,
) -> Result<()> {
    let stream = acceptor.accept(stream).await?;
    handshakes.fetch_add(1, Ordering::Relaxed);
    let is_h2 = stream.get_ref().1.alpn_protocol() == Some(tls::H2);
    let stream = TokioIo::new(stream);
    let service = service_fn(|request| {
        let count = handshakes.load(Ordering::Relaxed);
        async move { Ok::<_, Infallible>(respond(&request, count)) }
    });
    if is_h2 {
        let server = http2::Builder::new(TokioExecutor::new());
        server.serve_connection(stream, service).await?;
    } else {
        http1::Builder::new()
            .serve_connection(stream, service)
            .await?;
    }
    Ok(())
}

fn respond(request: &Request<Incoming>, handshakes: u64) -> Response<Full<Bytes>> {
    let body = match request.uri().path() {
        HANDSHAKES_PATH => Bytes::from(handshakes.to_string()),
        _ => Bytes::from_static(BODY),
    };
    Response::new(Full::new(body))
}
