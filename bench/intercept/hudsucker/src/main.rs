//! hudsucker with a CA from PEM files, as a contestant of `make bench-intercept`.
//!
//! Unlike in its examples, the cache of certificates has room for every host, and Nagle's algorithm, which delays each
//! response by 40 ms, is off on both sides.

use std::error::Error;
use std::fs;
use std::net::SocketAddr;

use hudsucker::Proxy;
use hudsucker::certificate_authority::RcgenAuthority;
use hudsucker::rcgen::{Issuer, KeyPair};
use hudsucker::rustls::crypto::aws_lc_rs::default_provider;
use hudsucker::rustls::pki_types::{CertificateDer, pem::PemObject};
use hudsucker::rustls::{ClientConfig, RootCertStore};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;

const USAGE: &str = "usage: bench-hudsucker ADDR CA.pem CA.key ROOT.pem";
const CACHED_CERTIFICATES: u64 = 20_000;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (listen, certificate, key, root) = match arguments[..] {
        ["--version"] => {
            println!("hudsucker 0.25.0");
            return Ok(());
        }
        [listen, certificate, key, root] => (listen, certificate, key, root),
        _ => return Err(USAGE.into()),
    };
    let issuer = Issuer::from_ca_cert_pem(
        &fs::read_to_string(certificate)?,
        KeyPair::from_pem(&fs::read_to_string(key)?)?,
    )?;
    let authority = RcgenAuthority::new(issuer, CACHED_CERTIFICATES, default_provider());
    let connector = connector(root)?;
    // One worker, as for every contestant.
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?
        .block_on(serve(listen.parse()?, authority, connector))
}

async fn serve(
    listen: SocketAddr,
    authority: RcgenAuthority,
    connector: HttpsConnector<HttpConnector>,
) -> Result<(), Box<dyn Error>> {
    let socket = tokio::net::TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    // On Linux, accepted sockets inherit this option.
    socket.set_nodelay(true)?;
    socket.bind(listen)?;
    let proxy = Proxy::builder()
        .with_listener(socket.listen(1024)?)
        .with_ca(authority)
        .with_http_connector(connector)
        .build()?;
    Ok(proxy.start().await?)
}

/// The connector of `with_rustls_connector`, with another trusted root.
fn connector(root: &str) -> Result<HttpsConnector<HttpConnector>, Box<dyn Error>> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(root)?)?;
    let tls = ClientConfig::builder_with_provider(default_provider().into())
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    http.set_nodelay(true);
    Ok(HttpsConnectorBuilder::new()
        .with_tls_config(tls)
        .https_or_http()
        .enable_http1()
        .enable_http2()
        .wrap_connector(http))
}
