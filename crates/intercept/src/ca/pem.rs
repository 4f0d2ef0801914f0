//! Keys and certificates as text (RFC 7468).

use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::error::AuthorityDefect;

/// Parses the private key in a text that may hold other sections too.
pub(super) fn parse_key(text: &str) -> Result<KeyPair, AuthorityDefect> {
    let der = PrivateKeyDer::from_pem_slice(text.as_bytes()).map_err(|_| no_key(text))?;
    let key = KeyPair::try_from(&der).map_err(|_| no_key(text))?;
    if key.algorithm() == &PKCS_ECDSA_P256_SHA256 {
        Ok(key)
    } else {
        Err(AuthorityDefect::NotP256)
    }
}

/// The defect of a text without a key that can be parsed. OpenSSL has two forms of encrypted keys, both with this word.
fn no_key(text: &str) -> AuthorityDefect {
    if text.contains("ENCRYPTED") {
        AuthorityDefect::Encrypted
    } else {
        AuthorityDefect::NoKey
    }
}

/// Parses all certificates in a text.
pub(super) fn parse_certificates(
    text: &str,
) -> Result<Vec<CertificateDer<'static>>, AuthorityDefect> {
    CertificateDer::pem_slice_iter(text.as_bytes())
        .collect::<Result<_, _>>()
        .map_err(|_| AuthorityDefect::Malformed)
}

/// Writes the text of an authority's file: key, then certificate.
pub(super) fn encode_authority(key: &KeyPair, certificate: &CertificateDer<'_>) -> String {
    key.serialize_pem() + &encode_certificates(std::slice::from_ref(certificate))
}

/// Writes certificates, one after the other.
#[must_use]
pub fn encode_certificates(certificates: &[CertificateDer<'_>]) -> String {
    certificates
        .iter()
        .map(|certificate| ::pem::Pem::new("CERTIFICATE", certificate.to_vec()))
        .map(|section| ::pem::encode_config(&section, LF_LINES))
        .collect()
}

/// Line endings as OpenSSL writes them.
const LF_LINES: ::pem::EncodeConfig =
    ::pem::EncodeConfig::new().set_line_ending(::pem::LineEnding::LF);
