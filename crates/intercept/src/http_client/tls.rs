//! The TLS configuration of connections to check services and collectors.

use std::fmt::{self, Debug, Formatter};
use std::sync::Arc;

use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

/// The authorities that a server is verified by, and the certificate that this process shows to it.
///
/// Configurations are equal if their certificates and keys are.
#[derive(Clone)]
pub struct ClientTls {
    credentials: Arc<Credentials>,
    config: Arc<ClientConfig>,
}

/// The certificates and the key of a [`ClientTls`].
#[derive(PartialEq)]
pub(crate) struct Credentials {
    pub(crate) roots: Vec<CertificateDer<'static>>,
    /// A certificate with its chain; empty without a key.
    pub(crate) chain: Vec<CertificateDer<'static>>,
    pub(crate) key: Option<PrivateKeyDer<'static>>,
}

impl Credentials {
    /// The authorities that this host trusts, and no certificate.
    pub(crate) fn native() -> Self {
        Self {
            roots: rustls_native_certs::load_native_certs().certs,
            chain: Vec::new(),
            key: None,
        }
    }
}

impl ClientTls {
    /// Builds a configuration. Leaves out roots that can't be parsed, because this host may have some. In a file that an
    /// operator lists, such roots are refused when the file is read.
    ///
    /// # Errors
    ///
    /// The key is not that of the certificate.
    pub(crate) fn new(credentials: Credentials) -> Result<Self, rustls::Error> {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(credentials.roots.iter().cloned());
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots);
        let config = match &credentials.key {
            None => builder.with_no_client_auth(),
            Some(key) => {
                builder.with_client_auth_cert(credentials.chain.clone(), key.clone_key())?
            }
        };
        Ok(Self {
            credentials: Arc::new(credentials),
            config: Arc::new(config),
        })
    }

    /// The configuration with ALPN for this protocol.
    pub(super) fn with_alpn(&self, protocol: &[u8]) -> Arc<ClientConfig> {
        let mut config = ClientConfig::clone(&self.config);
        config.alpn_protocols = vec![protocol.to_vec()];
        Arc::new(config)
    }
}

impl PartialEq for ClientTls {
    fn eq(&self, other: &Self) -> bool {
        self.credentials == other.credentials
    }
}

/// Without the key.
impl Debug for ClientTls {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let has_identity = self.credentials.key.is_some();
        f.debug_struct("ClientTls")
            .field("has_identity", &has_identity)
            .finish_non_exhaustive()
    }
}
