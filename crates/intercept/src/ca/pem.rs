//! Keys and certificates as text (RFC 7468).

use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::Fault;

/// The private key in a text that may hold other things too.
pub(super) fn key(text: &str) -> Result<KeyPair, Fault> {
    let der = PrivateKeyDer::from_pem_slice(text.as_bytes()).map_err(|_| Fault::NoKey)?;
    let key = KeyPair::try_from(&der).map_err(|_| Fault::NoKey)?;
    match key.algorithm() == &PKCS_ECDSA_P256_SHA256 {
        true => Ok(key),
        false => Err(Fault::NotP256),
    }
}

/// All certificates in a text.
pub(super) fn certificates(text: &str) -> Result<Vec<CertificateDer<'static>>, Fault> {
    CertificateDer::pem_slice_iter(text.as_bytes())
        .collect::<Result<_, _>>()
        .map_err(|_| Fault::Malformed)
}

/// The file of an authority.
pub(super) fn of_authority(key: &KeyPair, certificate: &CertificateDer<'_>) -> String {
    key.serialize_pem() + &of_certificates(std::slice::from_ref(certificate))
}

/// Certificates, one after the other.
#[must_use]
pub fn of_certificates(certificates: &[CertificateDer<'_>]) -> String {
    let section = |one: &CertificateDer<'_>| {
        ::pem::encode_config(&::pem::Pem::new("CERTIFICATE", one.to_vec()), LINES)
    };
    certificates.iter().map(section).collect()
}

/// What OpenSSL writes too.
const LINES: ::pem::EncodeConfig =
    ::pem::EncodeConfig::new().set_line_ending(::pem::LineEnding::LF);
