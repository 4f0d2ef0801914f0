//! Whom origins may be certified by: the host's own list and what the operator adds, never ourselves.

mod signature_cache;
pub(super) mod verifier;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use peername_sys::fs::text_file;
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};

use verifier::{OwnKeys, Verifier};

/// Why no origin could be verified.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrustError {
    /// A file of `--extra-ca`.
    #[error("--extra-ca {}: {why}", path.display())]
    ExtraCa {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// There is no authority to verify anybody by.
    #[error(
        "this host trusts no certificate authority, so that no origin could be verified: install \
         ca-certificates, or give --extra-ca FILE{0}"
    )]
    Nobody(String),
    /// The library refused.
    #[error("setting up TLS towards origins: {0}")]
    Tls(String),
}

/// TLS towards origins, in the two forms in which it is offered.
#[derive(Clone, Debug)]
pub(crate) struct Tls {
    /// For a client that speaks HTTP/2 with us.
    pub(crate) both: Arc<ClientConfig>,
    /// For a client that does not, and for what needs HTTP/1.1.
    pub(crate) http1: Arc<ClientConfig>,
}

impl Tls {
    /// With the host's authorities and those of these files, but without `ours`: an origin that shows one
    /// of our own forged certificates is a loop or an attack, also where somebody else vouches for our key.
    ///
    /// # Errors
    ///
    /// [`TrustError`].
    pub(crate) fn new(extra: &[PathBuf], ours: &[CertificateDer<'_>]) -> Result<Self, TrustError> {
        let mut roots = RootCertStore::empty();
        let ours = OwnKeys::of(ours);
        let native = rustls_native_certs::load_native_certs();
        let not_ours = native.certs.into_iter().filter(|one| !ours.has(one));
        roots.add_parsable_certificates(not_ours);
        for path in extra {
            add(&mut roots, path, &ours)?;
        }
        if roots.is_empty() {
            let errors = native.errors.iter().map(|error| format!("; {error}"));
            return Err(TrustError::Nobody(errors.collect()));
        }
        let tls = |error: &dyn std::fmt::Display| TrustError::Tls(error.to_string());
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let verifying = Arc::new(CryptoProvider {
            signature_verification_algorithms: signature_cache::algorithms(),
            ..CryptoProvider::clone(&provider)
        });
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), verifying)
            .build()
            .map_err(|error| tls(&error))?;
        let mut both = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| tls(&error))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Verifier::new(verifier, ours)))
            .with_no_client_auth();
        both.resumption = Resumption::in_memory_sessions(SESSIONS);
        let mut http1 = both.clone();
        both.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        http1.alpn_protocols = vec![b"http/1.1".to_vec()];
        http1.resumption = Resumption::in_memory_sessions(SESSIONS);
        Ok(Self {
            both: Arc::new(both),
            http1: Arc::new(http1),
        })
    }
}

fn add(roots: &mut RootCertStore, path: &Path, ours: &OwnKeys) -> Result<(), TrustError> {
    let refuse = |why: String| TrustError::ExtraCa {
        path: path.to_owned(),
        why,
    };
    let text = text_file::read(path).map_err(|error| refuse(error.to_string()))?;
    let mut added = 0;
    for certificate in CertificateDer::pem_slice_iter(text.as_bytes()) {
        let certificate = certificate.map_err(|error| refuse(error.to_string()))?;
        if ours.has(&certificate) {
            let why = "this is the proxy's own authority, which no origin may be certified by";
            return Err(refuse(why.to_owned()));
        }
        roots
            .add(certificate)
            .map_err(|error| refuse(error.to_string()))?;
        added += 1;
    }
    match added {
        0 => Err(refuse("no certificate in it; it has to be PEM".to_owned())),
        _ => Ok(()),
    }
}

/// Resuming saves half of the client's part of a handshake; the library's default is 256 servers.
const SESSIONS: usize = 8192;
