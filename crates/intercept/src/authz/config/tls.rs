//! TLS towards check services.

use std::fmt::{self, Debug, Formatter};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use peername_sys::fs::text_file;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

use super::error::ConfigError;

/// The authorities that services are verified by, and the certificate that this process shows them.
///
/// Two are equal if they were made of the same certificates and key.
#[derive(Clone)]
pub struct CheckTls {
    made_of: Arc<MadeOf>,
    config: Arc<ClientConfig>,
}

/// What a configuration was made of; for comparisons.
#[derive(PartialEq)]
struct MadeOf {
    roots: Vec<CertificateDer<'static>>,
    chain: Vec<CertificateDer<'static>>,
    key: Option<PrivateKeyDer<'static>>,
}

/// The files of a [`CheckTls`].
#[derive(Clone, Copy, Debug, Default)]
pub struct CheckTlsFiles<'a> {
    /// PEM files of authorities (`--check-ca`); without any, those that this host trusts.
    pub ca: &'a [PathBuf],
    /// PEM files of a certificate with its chain (`--check-cert`), and of its key (`--check-key`).
    pub identity: Option<(&'a Path, &'a Path)>,
}

impl CheckTls {
    /// Reads the files.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Tls`]: a file can't be read or is not valid, or the key is not that of the certificate. Nothing of the key
    /// is quoted.
    pub fn read(files: CheckTlsFiles<'_>) -> Result<Self, ConfigError> {
        let made_of = MadeOf::read(files)?;
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(made_of.roots.iter().cloned());
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let refuse = |error: rustls::Error| ConfigError::Tls(error.to_string());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(refuse)?
            .with_root_certificates(roots);
        let config = match &made_of.key {
            None => builder.with_no_client_auth(),
            Some(key) => builder
                .with_client_auth_cert(made_of.chain.clone(), key.clone_key())
                .map_err(|error| ConfigError::Tls(format!("--check-cert, --check-key: {error}")))?,
        };
        Ok(Self {
            made_of: Arc::new(made_of),
            config: Arc::new(config),
        })
    }

    /// A configuration that offers this protocol (ALPN).
    pub(crate) fn offering(&self, protocol: &[u8]) -> Arc<ClientConfig> {
        let mut config = ClientConfig::clone(&self.config);
        config.alpn_protocols = vec![protocol.to_vec()];
        Arc::new(config)
    }
}

impl MadeOf {
    fn read(files: CheckTlsFiles<'_>) -> Result<Self, ConfigError> {
        let roots = match files.ca {
            [] => rustls_native_certs::load_native_certs().certs,
            paths => {
                let all = paths.iter().map(|path| certificates("--check-ca", path));
                all.collect::<Result<Vec<_>, _>>()?.concat()
            }
        };
        let (chain, key) = match files.identity {
            None => (Vec::new(), None),
            Some((chain, key)) => (
                certificates("--check-cert", chain)?,
                Some(private_key(key)?),
            ),
        };
        Ok(Self { roots, chain, key })
    }
}

fn certificates(option: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>, ConfigError> {
    let text = read(option, path)?;
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text.as_bytes()).collect();
    match all {
        Ok(all) if all.is_empty() => Err(refuse(
            option,
            path,
            &"no certificate in it; it has to be PEM",
        )),
        Ok(all) => Ok(all),
        Err(error) => Err(refuse(option, path, &error)),
    }
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, ConfigError> {
    let option = "--check-key";
    let text = read(option, path)?;
    // The parser's error may quote what it has read.
    let why = "no private key in it; it has to be PEM, without a password";
    PrivateKeyDer::from_pem_slice(text.as_bytes()).map_err(|_| refuse(option, path, &why))
}

fn read(option: &str, path: &Path) -> Result<String, ConfigError> {
    text_file::read(path).map_err(|error| refuse(option, path, &error))
}

fn refuse(option: &str, path: &Path, why: &dyn fmt::Display) -> ConfigError {
    ConfigError::Tls(format!("{option} {}: {why}", path.display()))
}

impl PartialEq for CheckTls {
    fn eq(&self, other: &Self) -> bool {
        self.made_of == other.made_of
    }
}

/// Without the key.
impl Debug for CheckTls {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let has_identity = self.made_of.key.is_some();
        f.debug_struct("CheckTls")
            .field("has_identity", &has_identity)
            .finish_non_exhaustive()
    }
}
