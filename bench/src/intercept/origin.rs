//! `intercept-origin`: the server behind the proxy. 1 KiB for every request, over HTTP/1.1 or HTTP/2, and
//! a count of the handshakes for whoever asks.

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

use crate::intercept::authority::Hosts;
use crate::intercept::{serving, tls};

/// `peername-bench intercept-origin`
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Where to listen
    #[arg(long, value_name = "ADDR")]
    listen: SocketAddr,
    /// The authority that certifies its hosts, PEM
    #[arg(long, value_name = "FILE")]
    certificate: PathBuf,
    /// That authority's key, PEM
    #[arg(long, value_name = "FILE")]
    key: PathBuf,
}

/// What is asked for to learn how many handshakes there were.
pub(crate) const HANDSHAKES: &str = "/handshakes";

/// What every other request is answered with.
pub(crate) const BODY: &[u8] = &[b'x'; 1024];

/// Serves until it is killed.
///
/// # Errors
/// The address can't be listened on, or a file is not what it should be.
pub(crate) fn run(args: &Args) -> Result<()> {
    let hosts = Hosts::read(&args.certificate, &args.key)?;
    let acceptor = TlsAcceptor::from(tls::server(Arc::new(hosts))?);
    let handshakes = Arc::new(AtomicU64::new(0));
    serving::run(args.listen, |stream| {
        let (acceptor, handshakes) = (acceptor.clone(), handshakes.clone());
        async move {
            // A client that goes away is the generator's to complain of.
            let _ = converse(stream, acceptor, handshakes).await;
        }
    })
}

async fn converse(
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
        async move { Ok::<_, Infallible>(answer(&request, count)) }
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

fn answer(request: &Request<Incoming>, handshakes: u64) -> Response<Full<Bytes>> {
    let body = match request.uri().path() {
        HANDSHAKES => Bytes::from(handshakes.to_string()),
        _ => Bytes::from_static(BODY),
    };
    Response::new(Full::new(body))
}
