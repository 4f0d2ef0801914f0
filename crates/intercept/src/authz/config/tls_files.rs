//! The files for TLS towards check services.

use std::fmt;
use std::path::{Path, PathBuf};

use peername_sys::fs::text_file;
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::error::ConfigError;
use crate::ca::pem_error::read_certificates;
use crate::http_client::tls::{ClientTls, Credentials};

/// The files of a [`ClientTls`].
#[derive(Clone, Copy, Debug, Default)]
pub struct CheckTlsFiles<'a> {
    /// PEM files of authorities (`--check-ca`); if there are none, the authorities that this host trusts.
    pub ca: &'a [PathBuf],
    /// PEM files of a certificate with its chain (`--check-cert`), and of its key (`--check-key`).
    pub identity: Option<(&'a Path, &'a Path)>,
}

impl CheckTlsFiles<'_> {
    /// Reads the files.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Tls`]: a file can't be read or is not valid, or the key is not that of the certificate. Nothing of the key
    /// is quoted.
    pub fn read(self) -> Result<ClientTls, ConfigError> {
        let mut credentials = match self.ca {
            [] => Credentials::native(),
            paths => Credentials {
                roots: paths
                    .iter()
                    .map(|path| authorities(path))
                    .collect::<Result<Vec<_>, _>>()?
                    .concat(),
                chain: Vec::new(),
                key: None,
            },
        };
        if let Some((chain, key)) = self.identity {
            credentials.chain = certificates("--check-cert", chain)?;
            credentials.key = Some(private_key(key)?);
        }
        ClientTls::new(credentials).map_err(|error| self.refuse_identity(&error))
    }

    fn refuse_identity(self, error: &rustls::Error) -> ConfigError {
        match (error, self.identity) {
            (rustls::Error::InconsistentKeys(_), Some((chain, key))) => {
                let why = format!("not the key of {}", chain.display());
                refuse("--check-key", key, &why)
            }
            _ => ConfigError::Tls(format!("--check-cert, --check-key: {error}")),
        }
    }
}

/// Reads authorities, and refuses a certificate that can't be parsed. [`ClientTls`] would leave it out, because this host's own
/// roots may include such certificates, and every check would fail later.
fn authorities(path: &Path) -> Result<Vec<CertificateDer<'static>>, ConfigError> {
    let option = "--check-ca";
    let certificates = certificates(option, path)?;
    let mut roots = RootCertStore::empty();
    for certificate in &certificates {
        roots
            .add(CertificateDer::from(certificate.as_ref()))
            .map_err(|error| refuse(option, path, &error))?;
    }
    Ok(certificates)
}

fn certificates(option: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>, ConfigError> {
    read_certificates(path).map_err(|why| refuse(option, path, &why))
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, ConfigError> {
    let option = "--check-key";
    let text = text_file::read(path).map_err(|error| refuse(option, path, &error))?;
    // The parser's error may quote the file, and so the key.
    let why = "no private key in it; it has to be PEM, without a password";
    PrivateKeyDer::from_pem_slice(text.as_bytes()).map_err(|_| refuse(option, path, &why))
}

fn refuse(option: &str, path: &Path, why: &dyn fmt::Display) -> ConfigError {
    ConfigError::Tls(format!("{option} {}: {why}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rcgen::{CertificateParams, KeyPair};
    use tempfile::NamedTempFile;

    use super::*;

    #[test]
    fn authority_that_cannot_be_parsed_is_refused() {
        let file = NamedTempFile::new().unwrap();
        let pem = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        fs::write(&file, pem).unwrap();
        let files = CheckTlsFiles {
            ca: &[file.path().to_owned()],
            identity: None,
        };
        let error = files.read().unwrap_err().to_string();
        let option = format!("--check-ca {}: ", file.path().display());
        assert!(error.contains(&option), "{error}");
    }

    #[test]
    fn key_of_another_certificate_is_named() {
        let [ours, other] = [(); 2].map(|()| KeyPair::generate().unwrap());
        let certificate = CertificateParams::default().self_signed(&ours).unwrap();
        let [chain, key] = [(); 2].map(|()| NamedTempFile::new().unwrap());
        fs::write(&chain, certificate.pem()).unwrap();
        fs::write(&key, other.serialize_pem()).unwrap();
        let files = CheckTlsFiles {
            ca: &[],
            identity: Some((chain.path(), key.path())),
        };
        let error = files.read().unwrap_err().to_string();
        let (chain, key) = (chain.path().display(), key.path().display());
        let expected = format!("--check-key {key}: not the key of {chain}");
        assert!(error.contains(&expected), "{error}");
    }
}
