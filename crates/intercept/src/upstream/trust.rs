//! The trusted roots of origins: the roots of this host and those that the operator adds, but never the proxy's own authority.

mod signature_cache;
pub(super) mod tls_diagnosis;
pub(super) mod verifier;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::CertificateDer;
use rustls::{ClientConfig, RootCertStore};
use rustls_native_certs::CertificateResult;

use crate::ca::pem_error::{describe_root_errors, read_certificates};
use verifier::{OriginVerifier, OwnCaKeys};

/// Why origins can't be verified.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrustError {
    /// A file of `--extra-ca` can't be used.
    #[error("--extra-ca {}: {why}", path.display())]
    ExtraCa {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// There is no trusted root.
    #[error(
        "this host trusts no certificate authority, so that no origin could be verified: install \
         ca-certificates, or give --extra-ca FILE{0}"
    )]
    NoRoots(String),
    /// The TLS library refuses the configuration.
    #[error("setting up TLS towards origins: {0}")]
    Tls(String),
}

impl TrustError {
    /// Creates [`Self::NoRoots`], with the errors of reading this host's roots.
    pub fn no_roots(native: &CertificateResult) -> Self {
        let errors = describe_root_errors(&native.errors)
            .iter()
            .map(|error| format!("; {error}"))
            .collect();
        Self::NoRoots(errors)
    }
}

/// TLS towards origins, in two configurations.
#[derive(Clone, Debug)]
pub(crate) struct OriginTls {
    /// Offers HTTP/2 and HTTP/1.1, for requests that came over HTTP/2.
    pub(crate) http2: Arc<ClientConfig>,
    /// Offers only HTTP/1.1, for all other requests.
    pub(crate) http1: Arc<ClientConfig>,
}

impl OriginTls {
    /// Trusts the roots `native` of this host and those in the files `extra`, but not `own_ca`. An origin with a certificate by the
    /// proxy's own authority is a loop or an attack, even if another authority has certified the key, too.
    pub(crate) fn new(
        native: &CertificateResult,
        extra: &[PathBuf],
        own_ca: &[CertificateDer<'_>],
    ) -> Result<Self, TrustError> {
        let mut roots = RootCertStore::empty();
        let own_keys = OwnCaKeys::new(own_ca);
        roots.add_parsable_certificates(
            native
                .certs
                .iter()
                .filter(|root| !own_keys.include_key_of(root))
                .map(|root| CertificateDer::from(root.as_ref())),
        );
        for path in extra {
            add_roots(&mut roots, path, &own_keys)?;
        }
        if roots.is_empty() {
            return Err(TrustError::no_roots(native));
        }
        let refused = |error: &dyn std::fmt::Display| TrustError::Tls(error.to_string());
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let verifying = Arc::new(CryptoProvider {
            signature_verification_algorithms: signature_cache::algorithms(),
            ..CryptoProvider::clone(&provider)
        });
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), verifying)
            .build()
            .map_err(|error| refused(&error))?;
        let mut http2 = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| refused(&error))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(OriginVerifier::new(verifier, own_keys)))
            .with_no_client_auth();
        http2.resumption = Resumption::in_memory_sessions(MAX_SESSIONS);
        let mut http1 = http2.clone();
        http2.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        http1.alpn_protocols = vec![b"http/1.1".to_vec()];
        http1.resumption = Resumption::in_memory_sessions(MAX_SESSIONS);
        Ok(Self {
            http2: Arc::new(http2),
            http1: Arc::new(http1),
        })
    }
}

/// Checks that the files of `--extra-ca` can be used, and that none has a key of the proxy's own authority, whose certificates
/// are `own_ca`. The files are read again for the connections.
pub fn check_extra_ca(extra: &[PathBuf], own_ca: &[CertificateDer<'_>]) -> Result<(), TrustError> {
    let own_keys = OwnCaKeys::new(own_ca);
    extra
        .iter()
        .try_for_each(|path| add_roots(&mut RootCertStore::empty(), path, &own_keys))
}

fn add_roots(
    roots: &mut RootCertStore,
    path: &Path,
    own_keys: &OwnCaKeys,
) -> Result<(), TrustError> {
    let refuse = |why: String| TrustError::ExtraCa {
        path: path.to_owned(),
        why,
    };
    for certificate in read_certificates(path).map_err(refuse)? {
        if own_keys.include_key_of(&certificate) {
            let why = "this is the proxy's own authority, which no origin may be certified by";
            return Err(refuse(why.to_owned()));
        }
        roots
            .add(certificate)
            .map_err(|error| refuse(error.to_string()))?;
    }
    Ok(())
}

/// The maximum number of sessions for resumption, which saves half of the client's part of a handshake. The library's default
/// is 256 servers.
const MAX_SESSIONS: usize = 8192;
