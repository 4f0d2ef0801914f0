//! Verification of origins' certificates, with errors that an operator can act on.
//!
//! rustls decides; the error adds what is in the certificate, because "unknown issuer" alone does not help.

use std::fmt::{self, Display, Formatter};
use std::iter;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, DigitallySignedStruct, Error, OtherError, SignatureScheme};
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};
use x509_parser::public_key::PublicKey;

/// A certificate that was not accepted, and what is in it.
#[derive(Clone, Debug)]
pub(crate) struct BadCertificate {
    why: Why,
    seen: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Why {
    Expired,
    NotYetValid,
    WrongName,
    Untrusted,
    SelfSigned,
    Revoked,
    /// An authority's own, as `openssl req -x509` makes them by default. No trust makes it a server's.
    CaAsServer,
    /// A key of the chain is too short: an RSA key of so many bits.
    WeakKey(usize),
    /// The origin's chain has a certificate of the proxy's own authority.
    OwnAuthority,
    Invalid(String),
}

impl BadCertificate {
    /// The certificate's fault in a failed handshake; `None` if the handshake failed of something else.
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
        let parsed = parse(certificate);
        let is_self_signed = parsed
            .as_ref()
            .is_some_and(|seen| seen.subject() == seen.issuer());
        let why = match error {
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => Why::Expired,
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                Why::NotYetValid
            }
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                Why::WrongName
            }
            CertificateError::UnknownIssuer if is_self_signed => Why::SelfSigned,
            CertificateError::UnknownIssuer => Why::Untrusted,
            CertificateError::Revoked => Why::Revoked,
            CertificateError::Other(OtherError(why)) if why.to_string() == CA_AS_SERVER => {
                Why::CaAsServer
            }
            CertificateError::Other(_) if is_self_signed => Why::SelfSigned,
            other => {
                let mut chain = iter::once(certificate).chain(issuers);
                match (chain.find_map(weak_key), other) {
                    (Some(bits), _) => Why::WeakKey(bits),
                    (None, CertificateError::Other(OtherError(why))) => {
                        Why::Invalid(why.to_string())
                    }
                    (None, other) => Why::Invalid(other.to_string()),
                }
            }
        };
        Self::describe(why, certificate)
    }

    fn describe(why: Why, certificate: &CertificateDer<'_>) -> Self {
        let parsed = parse(certificate);
        let seen = parsed.map_or_else(|| "can't be read".to_owned(), |parsed| describe(&parsed));
        Self { why, seen }
    }

    fn into_error(self) -> Error {
        Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(self))))
    }

    pub(crate) fn code(&self) -> &'static str {
        match self.why {
            Why::Expired => "upstream_tls_expired",
            Why::NotYetValid => "upstream_tls_not_yet_valid",
            Why::WrongName => "upstream_tls_wrong_name",
            Why::Untrusted => "upstream_tls_untrusted",
            Why::SelfSigned => "upstream_tls_self_signed",
            Why::Revoked => "upstream_tls_revoked",
            Why::CaAsServer => "upstream_tls_ca_certificate",
            Why::WeakKey(_) => "upstream_tls_weak_key",
            Why::OwnAuthority => "upstream_tls_own_authority",
            Why::Invalid(_) => "upstream_tls_invalid",
        }
    }

    pub(crate) fn hint(&self) -> &'static str {
        match self.why {
            Why::Expired => "the origin has to renew it; is the clock of the proxy's host right?",
            Why::NotYetValid => "is the clock of the proxy's host right?",
            Why::WrongName => "another server answered, or the origin lacks this name",
            Why::SelfSigned => "if it is your own: --extra-ca FILE",
            Why::CaAsServer => {
                "--extra-ca does not help: have this authority sign a certificate for the server and trust the authority, or \
                 make the server's with `openssl req -x509 -addext basicConstraints=critical,CA:FALSE` and trust that"
            }
            Why::Untrusted => {
                "if the issuer is your own: --extra-ca FILE; an origin that sends no intermediate \
                 certificate has to be fixed there"
            }
            Why::Revoked => "the origin has to replace it",
            Why::WeakKey(_) => {
                "the origin has to replace it; --passthrough this host leaves it to the client"
            }
            Why::OwnAuthority => {
                "does the name lead back to a proxy with this key? If not, the key was stolen: \
                 peername ca rotate"
            }
            Why::Invalid(_) => "",
        }
    }
}

impl Display for BadCertificate {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let why = match &self.why {
            Why::Expired => "has expired",
            Why::NotYetValid => "is not valid yet",
            Why::WrongName => "is for another name",
            Why::Untrusted => "has an issuer that is not trusted here",
            Why::SelfSigned => "is self-signed and not trusted here",
            Why::Revoked => "is revoked",
            Why::CaAsServer => "is an authority's (CA:TRUE), which is accepted for no server",
            Why::WeakKey(bits) => {
                return write!(
                    f,
                    "the origin's certificate or an issuer has an RSA key of {bits} bits, and {MIN_RSA_BITS} are the least; it {}",
                    self.seen
                );
            }
            Why::OwnAuthority => "comes with one of this proxy's own authority",
            Why::Invalid(why) => {
                return write!(f, "the origin's certificate: {why}; it {}", self.seen);
            }
        };
        write!(f, "the origin's certificate {why}; it {}", self.seen)
    }
}

impl std::error::Error for BadCertificate {}

/// The public keys of the proxy's own authority and its predecessors.
#[derive(Debug)]
pub(crate) struct OwnCaKeys(Vec<Box<[u8]>>);

impl OwnCaKeys {
    pub(crate) fn new(certificates: &[CertificateDer<'_>]) -> Self {
        Self(
            certificates
                .iter()
                .filter_map(|one| Some(public_key(&parse(one)?)))
                .collect(),
        )
    }

    /// Whether a certificate is for one of these keys, whatever else is in it: it may be cross-signed.
    pub(crate) fn certify(&self, certificate: &CertificateDer<'_>) -> bool {
        // Searches the bytes first: nearly no certificate has the key, and parsing one takes many times as long. Comparing
        // the first byte saves a call of memcmp(3) at nearly each position.
        let may_be = |own: &[u8]| {
            certificate
                .windows(own.len().max(1))
                .any(|part| part.first() == own.first() && part == own)
        };
        self.0.iter().any(|own| may_be(own))
            && parse(certificate).is_some_and(|theirs| self.0.contains(&public_key(&theirs)))
    }
}

/// The bytes that identify a key. A point of an elliptic curve may be written with one coordinate or with both (RFC 5480,
/// section 2.2), and verifiers accept either: the first coordinate identifies it.
fn public_key(certificate: &X509Certificate<'_>) -> Box<[u8]> {
    let key = certificate.public_key();
    let bytes = key.subject_public_key.as_ref();
    match key.parsed() {
        Ok(PublicKey::EC(_)) => match bytes {
            [UNCOMPRESSED, both @ ..] => both.split_at(both.len() / 2).0.into(),
            [_, first @ ..] => first.into(),
            [] => Box::default(),
        },
        _ => bytes.into(),
    }
}

/// Verifies as rustls does, and refuses chains with the proxy's own authority: where a trusted authority has certified its
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
        let mut shown = iter::once(end_entity).chain(intermediates);
        if shown.any(|one| self.own_keys.certify(one)) {
            return Err(BadCertificate::describe(Why::OwnAuthority, end_entity).into_error());
        }
        let verified = self.inner.verify_server_cert(
            end_entity,
            intermediates,
            server_name,
            ocsp_response,
            now,
        );
        verified.map_err(|error| explain(error, end_entity, intermediates))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let verified = self.inner.verify_tls12_signature(message, cert, dss);
        verified.map_err(|error| explain(error, cert, &[]))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let verified = self.inner.verify_tls13_signature(message, cert, dss);
        verified.map_err(|error| explain(error, cert, &[]))
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

/// Adds what is in the certificate, where the error is about the certificate: a key that is too short is noticed by its
/// signature.
fn explain(
    error: Error,
    certificate: &CertificateDer<'_>,
    issuers: &[CertificateDer<'_>],
) -> Error {
    match error {
        Error::InvalidCertificate(why) => {
            BadCertificate::new(&why, certificate, issuers).into_error()
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
    let names = certificate.subject_alternative_name().ok().flatten();
    let names = names.iter().flat_map(|names| &names.value.general_names);
    let names: Vec<_> = names
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
    let printable = |c: char| {
        if c.is_ascii() && !c.is_ascii_control() {
            c
        } else {
            '?'
        }
    };
    text.chars().map(printable).take(MAX_DESCRIPTION).collect()
}

/// The least bits of an RSA key that webpki verifies signatures with.
const MIN_RSA_BITS: usize = 2048;
/// webpki's error for the certificate of an authority as that of a server.
const CA_AS_SERVER: &str = "CaUsedAsEndEntity";
/// The first byte of a point with both coordinates (SEC 1, section 2.3.3).
const UNCOMPRESSED: u8 = 4;
const MAX_NAMES: usize = 8;
const MAX_DESCRIPTION: usize = 600;
