//! TLS configuration of generator and origin: one version, one key exchange, one cipher suite, so that every contestant
//! does the same work on both sides.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use rustls::client::Resumption;
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::{self, cipher_suite, kx_group};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::server::ResolvesServerCert;
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore, ServerConfig};

/// ALPN protocol names.
pub(crate) const H2: &[u8] = b"h2";
pub(crate) const HTTP1: &[u8] = b"http/1.1";

/// Returns the configuration of a client that trusts only the CAs in the file `root`, and offers only `alpn`.
pub(crate) fn client_config(root: &Path, alpn: &[u8], resume: bool) -> Result<Arc<ClientConfig>> {
    let mut roots = RootCertStore::empty();
    let read = || format!("read {}", root.display());
    for certificate in CertificateDer::pem_file_iter(root).with_context(read)? {
        roots.add(certificate.with_context(read)?)?;
    }
    ensure!(!roots.is_empty(), "{} has no certificate", root.display());
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![alpn.to_vec()];
    if !resume {
        config.resumption = Resumption::disabled();
    }
    Ok(Arc::new(config))
}

/// Returns the configuration of a server with these certificates, for HTTP/1.1 and HTTP/2.
pub(crate) fn server_config(
    certificates: Arc<dyn ResolvesServerCert>,
) -> Result<Arc<ServerConfig>> {
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])?
        .with_no_client_auth()
        .with_cert_resolver(certificates);
    config.alpn_protocols = vec![H2.to_vec(), HTTP1.to_vec()];
    Ok(Arc::new(config))
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(CryptoProvider {
        kx_groups: vec![kx_group::X25519],
        cipher_suites: vec![cipher_suite::TLS13_AES_128_GCM_SHA256],
        ..aws_lc_rs::default_provider()
    })
}
