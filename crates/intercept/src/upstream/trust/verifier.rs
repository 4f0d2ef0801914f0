//! Whether an origin is who it says, with an answer that people can act on where it is not.
//!
//! rustls decides; what is added is what was seen, because "unknown issuer" alone sends nobody anywhere.

use std::fmt::{self, Display, Formatter};
use std::iter;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, DigitallySignedStruct, Error, OtherError, SignatureScheme};
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};
use x509_parser::public_key::PublicKey;

/// A certificate that was not accepted, and what stands in it.
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
    /// A certificate of our own authority's key is among what the origin shows.
    Ours,
    Invalid(String),
}

impl BadCertificate {
    /// What a failed handshake says of the certificate, if that is what it failed of.
    pub(crate) fn of(error: &Error) -> Option<Self> {
        match error {
            Error::InvalidCertificate(CertificateError::Other(OtherError(inner))) => {
                inner.downcast_ref::<Self>().cloned()
            }
            _ => None,
        }
    }

    fn new(error: &CertificateError, certificate: &CertificateDer<'_>) -> Self {
        let parsed = parsed(certificate);
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
            // As openssl(1) makes them when nothing else is asked for: an authority's own.
            CertificateError::Other(_) if is_self_signed => Why::SelfSigned,
            CertificateError::Other(OtherError(why)) => Why::Invalid(why.to_string()),
            other => Why::Invalid(other.to_string()),
        };
        Self::seen(why, certificate)
    }

    fn seen(why: Why, certificate: &CertificateDer<'_>) -> Self {
        let parsed = parsed(certificate);
        let seen = parsed.map_or_else(|| "can't be read".to_owned(), |seen| describe(&seen));
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
            Why::Ours => "upstream_tls_own_authority",
            Why::Invalid(_) => "upstream_tls_invalid",
        }
    }

    pub(crate) fn hint(&self) -> &'static str {
        match self.why {
            Why::Expired => "the origin has to renew it; is the clock of the proxy's host right?",
            Why::NotYetValid => "is the clock of the proxy's host right?",
            Why::WrongName => "another server answered, or the origin lacks this name",
            Why::SelfSigned => {
                "if it is your own: --extra-ca FILE. An authority's certificate (CA:TRUE, as `openssl req -x509` \
                 makes them) is taken for no server's: have it sign one"
            }
            Why::Untrusted => {
                "if the issuer is your own: --extra-ca FILE; an origin that sends no intermediate \
                 certificate has to be fixed there"
            }
            Why::Revoked => "the origin has to replace it",
            Why::Ours => {
                "does the name lead back to a proxy with this key? If not, somebody else has it: \
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
            Why::Untrusted => "has an issuer that nobody here trusts",
            Why::SelfSigned => "is self-signed and not trusted here",
            Why::Revoked => "is revoked",
            Why::Ours => "comes with one of this proxy's own authority",
            Why::Invalid(why) => {
                return write!(f, "the origin's certificate: {why}; it {}", self.seen);
            }
        };
        write!(f, "the origin's certificate {why}; it {}", self.seen)
    }
}

impl std::error::Error for BadCertificate {}

/// The public keys of our own authority and its predecessors.
#[derive(Debug)]
pub(crate) struct OwnKeys(Vec<Box<[u8]>>);

impl OwnKeys {
    pub(crate) fn of(certificates: &[CertificateDer<'_>]) -> Self {
        let keys = certificates
            .iter()
            .filter_map(|one| Some(public_key(&parsed(one)?)));
        Self(keys.collect())
    }

    /// By its key, whatever else stands in the certificate: it may be cross-signed.
    pub(crate) fn has(&self, certificate: &CertificateDer<'_>) -> bool {
        // Nearly no certificate has it anywhere, and to read one takes twenty times as long as this look.
        let may_be = |own: &[u8]| {
            certificate
                .windows(own.len().max(1))
                .any(|part| part == own)
        };
        self.0.iter().any(|own| may_be(own))
            && parsed(certificate).is_some_and(|theirs| self.0.contains(&public_key(&theirs)))
    }
}

/// A point of an elliptic curve may be written with one coordinate or with both (RFC 5480, section 2.2), and
/// verifiers take either: the first one tells the key.
fn public_key(certificate: &X509Certificate<'_>) -> Box<[u8]> {
    let key = certificate.public_key();
    let octets = key.subject_public_key.as_ref();
    match key.parsed() {
        Ok(PublicKey::EC(_)) => match octets {
            [UNCOMPRESSED, both @ ..] => both.split_at(both.len() / 2).0.into(),
            [_, first @ ..] => first.into(),
            [] => Box::default(),
        },
        _ => octets.into(),
    }
}

/// Verifies as rustls does, and refuses what our own authority has any part in: where somebody who is trusted
/// has certified its key, rustls would take what we forge.
#[derive(Debug)]
pub(crate) struct Verifier {
    inner: Arc<WebPkiServerVerifier>,
    ours: OwnKeys,
}

impl Verifier {
    pub(crate) fn new(inner: Arc<WebPkiServerVerifier>, ours: OwnKeys) -> Self {
        Self { inner, ours }
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let mut shown = iter::once(end_entity).chain(intermediates);
        if shown.any(|one| self.ours.has(one)) {
            return Err(BadCertificate::seen(Why::Ours, end_entity).into_error());
        }
        let verified = self.inner.verify_server_cert(
            end_entity,
            intermediates,
            server_name,
            ocsp_response,
            now,
        );
        verified.map_err(|error| told(error, end_entity))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let verified = self.inner.verify_tls12_signature(message, cert, dss);
        verified.map_err(|error| told(error, cert))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let verified = self.inner.verify_tls13_signature(message, cert, dss);
        verified.map_err(|error| told(error, cert))
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

/// With what stands in the certificate, where it is the certificate's fault: a key that is too short is noticed by
/// what it signs.
fn told(error: Error, certificate: &CertificateDer<'_>) -> Error {
    match error {
        Error::InvalidCertificate(why) => BadCertificate::new(&why, certificate).into_error(),
        other => other,
    }
}

fn parsed<'a>(certificate: &'a CertificateDer<'_>) -> Option<X509Certificate<'a>> {
    X509Certificate::from_der(certificate)
        .ok()
        .map(|(_, parsed)| parsed)
}

/// In printable ASCII and of bounded length: it is the origin that wrote it.
fn describe(certificate: &X509Certificate<'_>) -> String {
    let names = certificate.subject_alternative_name().ok().flatten();
    let names = names.iter().flat_map(|names| &names.value.general_names);
    let names: Vec<_> = names
        .filter_map(|name| match name {
            GeneralName::DNSName(name) => Some(*name),
            _ => None,
        })
        .take(MOST_NAMES)
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
    text.chars().map(printable).take(MOST_SHOWN).collect()
}

/// The first octet of a point with both coordinates (SEC 1, section 2.3.3).
const UNCOMPRESSED: u8 = 4;
const MOST_NAMES: usize = 8;
const MOST_SHOWN: usize = 600;
