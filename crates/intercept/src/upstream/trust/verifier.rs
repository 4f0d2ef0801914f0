//! Verification of origins' certificates by rustls. Errors describe the certificate, because "unknown issuer" alone does not
//! help an operator.

use std::iter;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, DigitallySignedStruct, Error, OtherError, SignatureScheme};
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};
use x509_parser::public_key::PublicKey;

/// A certificate that was not accepted.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the origin's certificate{fault}; it {description}")]
pub(crate) struct BadCertificate {
    fault: Fault,
    /// The content of the certificate.
    description: String,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum Fault {
    #[error(" has expired")]
    Expired,
    #[error(" is not valid yet")]
    NotYetValid,
    #[error(" is for another name")]
    WrongName,
    #[error(" has an issuer that is not trusted here")]
    Untrusted,
    #[error(" is self-signed and not trusted here")]
    SelfSigned,
    #[error(" is revoked")]
    Revoked,
    /// The certificate is an authority's, which is what `openssl req -x509` creates by default. Trusting it does not make it a
    /// server's.
    #[error(" is an authority's (CA:TRUE), which no server may use")]
    CaAsServer,
    /// The chain has an RSA key of this many bits, which is too short.
    #[error(
        " or an issuer has an RSA key of {0} bits, but at least {required} are required",
        required = MIN_RSA_BITS
    )]
    WeakKey(usize),
    /// The chain has a certificate of the proxy's own authority.
    #[error(" comes with one of this proxy's own authority")]
    OwnAuthority,
    #[error(": {0}")]
    Invalid(String),
}

impl BadCertificate {
    /// Returns the certificate that made a handshake fail; `None` if the handshake failed for another reason.
    pub(crate) fn from_tls_error(error: &Error) -> Option<Self> {
        match error {
            Error::InvalidCertificate(CertificateError::Other(OtherError(inner))) => {
                inner.downcast_ref::<Self>().cloned()
            }
            _ => None,
        }
    }

    fn new(
        error: &CertificateError,
        certificate: &CertificateDer<'_>,
        issuers: &[CertificateDer<'_>],
    ) -> Self {
        let is_self_signed =
            parse(certificate).is_some_and(|parsed| parsed.subject() == parsed.issuer());
        let fault = match error {
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => Fault::Expired,
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                Fault::NotYetValid
            }
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                Fault::WrongName
            }
            CertificateError::UnknownIssuer if is_self_signed => Fault::SelfSigned,
            CertificateError::UnknownIssuer => Fault::Untrusted,
            CertificateError::Revoked => Fault::Revoked,
            CertificateError::Other(OtherError(why)) if why.to_string() == CA_AS_SERVER => {
                Fault::CaAsServer
            }
            CertificateError::Other(_) if is_self_signed => Fault::SelfSigned,
            other => {
                let mut chain = iter::once(certificate).chain(issuers);
                match (chain.find_map(weak_key), other) {
                    (Some(bits), _) => Fault::WeakKey(bits),
                    (None, CertificateError::Other(OtherError(why))) => {
                        Fault::Invalid(why.to_string())
                    }
                    (None, other) => Fault::Invalid(other.to_string()),
                }
            }
        };
        Self::with_fault(fault, certificate)
    }

    fn with_fault(fault: Fault, certificate: &CertificateDer<'_>) -> Self {
        let description = match parse(certificate) {
            Some(parsed) => describe(&parsed),
            None => "can't be read".to_owned(),
        };
        Self { fault, description }
    }

    fn into_error(self) -> Error {
        Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(self))))
    }

    pub(crate) fn code(&self) -> &'static str {
        match self.fault {
            Fault::Expired => "upstream_tls_expired",
            Fault::NotYetValid => "upstream_tls_not_yet_valid",
            Fault::WrongName => "upstream_tls_wrong_name",
            Fault::Untrusted => "upstream_tls_untrusted",
            Fault::SelfSigned => "upstream_tls_self_signed",
            Fault::Revoked => "upstream_tls_revoked",
            Fault::CaAsServer => "upstream_tls_ca_certificate",
            Fault::WeakKey(_) => "upstream_tls_weak_key",
            Fault::OwnAuthority => "upstream_tls_own_authority",
            Fault::Invalid(_) => "upstream_tls_invalid",
        }
    }

    pub(crate) fn hint(&self) -> &'static str {
        match self.fault {
            Fault::Expired => "the origin has to renew it; is the clock of the proxy's host right?",
            Fault::NotYetValid => "is the clock of the proxy's host right?",
            Fault::WrongName => "another server answered, or the origin lacks this name",
            Fault::SelfSigned => "if it is your own: --extra-ca FILE",
            Fault::CaAsServer => {
                "--extra-ca does not help: have this authority sign a certificate for the server and trust the authority, or \
                 make the server's with `openssl req -x509 -addext basicConstraints=critical,CA:FALSE` and trust that"
            }
            Fault::Untrusted => {
                "if the issuer is your own: --extra-ca FILE; an origin that sends no intermediate \
                 certificate has to be fixed there"
            }
            Fault::Revoked => "the origin has to replace it",
            Fault::WeakKey(_) => {
                "the origin has to replace it; --passthrough this host leaves it to the client"
            }
            Fault::OwnAuthority => {
                "does the name lead back to a proxy with this key? If not, the key was stolen: \
                 peername ca rotate"
            }
            Fault::Invalid(_) => "",
        }
    }
}

/// The public keys of the proxy's own authority and its predecessors.
#[derive(Debug)]
pub(crate) struct OwnCaKeys(Vec<Box<[u8]>>);

impl OwnCaKeys {
    pub(crate) fn new(certificates: &[CertificateDer<'_>]) -> Self {
        Self(
            certificates
                .iter()
                .filter_map(|certificate| Some(public_key(&parse(certificate)?)))
                .collect(),
        )
    }

    /// Whether these include the key of a certificate, which another authority may have signed.
    pub(crate) fn include_key_of(&self, certificate: &CertificateDer<'_>) -> bool {
        // Searches for the bytes first: parsing a certificate takes many times as long, and hardly any has the key. Comparing
        // the first byte saves a call of memcmp(3) at nearly each position.
        let contains_bytes = |key: &[u8]| {
            certificate
                .windows(key.len().max(1))
                .any(|window| window.first() == key.first() && window == key)
        };
        self.0.iter().any(|key| contains_bytes(key))
            && parse(certificate).is_some_and(|parsed| self.0.contains(&public_key(&parsed)))
    }
}

/// The bytes that identify a key. Of an elliptic curve's point these are the first coordinate: the point may be written with one
/// coordinate or with both (RFC 5480, section 2.2), and verifiers accept either form.
fn public_key(certificate: &X509Certificate<'_>) -> Box<[u8]> {
    let key = certificate.public_key();
    let bytes = key.subject_public_key.as_ref();
    match key.parsed() {
        Ok(PublicKey::EC(_)) => match bytes {
            [UNCOMPRESSED, coordinates @ ..] => {
                coordinates.split_at(coordinates.len() / 2).0.into()
            }
            [_, first_coordinate @ ..] => first_coordinate.into(),
            [] => Box::default(),
        },
        _ => bytes.into(),
    }
}

/// Verifies as rustls does, and refuses chains with the proxy's own authority. If a trusted authority had certified the proxy's
/// key, rustls would accept the certificates that the proxy mints.
#[derive(Debug)]
pub(crate) struct OriginVerifier {
    inner: Arc<WebPkiServerVerifier>,
    own_keys: OwnCaKeys,
}

impl OriginVerifier {
    pub(crate) fn new(inner: Arc<WebPkiServerVerifier>, own_keys: OwnCaKeys) -> Self {
        Self { inner, own_keys }
    }
}

impl ServerCertVerifier for OriginVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let mut chain = iter::once(end_entity).chain(intermediates);
        if chain.any(|certificate| self.own_keys.include_key_of(certificate)) {
            return Err(BadCertificate::with_fault(Fault::OwnAuthority, end_entity).into_error());
        }
        self.inner
            .verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
            .map_err(|error| explain(error, end_entity, intermediates))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner
            .verify_tls12_signature(message, cert, dss)
            .map_err(|error| explain(error, cert, &[]))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner
            .verify_tls13_signature(message, cert, dss)
            .map_err(|error| explain(error, cert, &[]))
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

/// Adds the description of the certificate to an error about it. Errors of signatures are among these: rustls refuses a key
/// that is too short when it verifies its signature.
fn explain(
    error: Error,
    certificate: &CertificateDer<'_>,
    issuers: &[CertificateDer<'_>],
) -> Error {
    match error {
        Error::InvalidCertificate(error) => {
            BadCertificate::new(&error, certificate, issuers).into_error()
        }
        other => other,
    }
}

/// The bits of an RSA key that is too short for signatures; `None` for other keys.
fn weak_key(certificate: &CertificateDer<'_>) -> Option<usize> {
    match parse(certificate)?.public_key().parsed().ok()? {
        PublicKey::RSA(key) => Some(key.key_size()).filter(|bits| *bits < MIN_RSA_BITS),
        _ => None,
    }
}

fn parse<'a>(certificate: &'a CertificateDer<'_>) -> Option<X509Certificate<'a>> {
    X509Certificate::from_der(certificate)
        .ok()
        .map(|(_, parsed)| parsed)
}

/// Describes a certificate in printable ASCII and bounded length: the origin wrote it.
fn describe(certificate: &X509Certificate<'_>) -> String {
    let alternative_names = certificate.subject_alternative_name().ok().flatten();
    let names: Vec<_> = alternative_names
        .iter()
        .flat_map(|extension| &extension.value.general_names)
        .filter_map(|name| match name {
            GeneralName::DNSName(name) => Some(*name),
            _ => None,
        })
        .take(MAX_NAMES)
        .collect();
    let validity = certificate.validity();
    let text = format!(
        "is for [{}], subject \"{}\", issued by \"{}\", valid from {} to {}",
        names.join(", "),
        certificate.subject(),
        certificate.issuer(),
        validity.not_before,
        validity.not_after,
    );
    text.chars()
        .map(|c| {
            if c.is_ascii() && !c.is_ascii_control() {
                c
            } else {
                '?'
            }
        })
        .take(MAX_DESCRIPTION)
        .collect()
}

/// The minimum length of an RSA key that webpki accepts.
const MIN_RSA_BITS: usize = 2048;
/// webpki's error for a server that uses the certificate of an authority.
const CA_AS_SERVER: &str = "CaUsedAsEndEntity";
/// The first byte of a point with both coordinates (SEC 1, section 2.3.3).
const UNCOMPRESSED: u8 = 4;
/// The maximum number of names in a description.
const MAX_NAMES: usize = 8;
/// The maximum number of characters of a description.
const MAX_DESCRIPTION: usize = 600;
