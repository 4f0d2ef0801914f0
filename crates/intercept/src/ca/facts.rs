//! The fields of an authority's certificate, parsed once.

use aws_lc_rs::digest::{SHA256, digest};
use rcgen::{KeyPair, PublicKeyData};
use rustls::pki_types::{CertificateDer, UnixTime};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::ParsedExtension;
use x509_parser::parse_x509_certificate;
use x509_parser::time::ASN1Time;

use super::constraints::{Constraints, Subtree};
use super::error::AuthorityDefect;
use super::options::AuthorityOptions;
use super::validity::DAY;

/// The fields of an authority's certificate.
#[derive(Debug, Clone)]
pub struct CertificateFacts {
    /// The subject, in the form of RFC 4514.
    pub subject: String,
    /// SHA-256 of the certificate.
    pub fingerprint: [u8; 32],
    /// notBefore, in seconds since 1970.
    pub not_before: u64,
    /// notAfter, in seconds since 1970.
    pub not_after: u64,
    pub(super) key_id: Vec<u8>,
    pub(super) constraints: Constraints,
    common_name: Option<String>,
    /// The subject in DER, which certificates of this issuer repeat.
    pub(super) subject_der: Vec<u8>,
    issuer_der: Vec<u8>,
    public_key: Vec<u8>,
    may_issue: bool,
}

impl CertificateFacts {
    pub(super) fn parse(der: &CertificateDer<'_>) -> Result<Self, AuthorityDefect> {
        let (rest, certificate) =
            parse_x509_certificate(der).map_err(|_| AuthorityDefect::Malformed)?;
        if !rest.is_empty() {
            return Err(AuthorityDefect::Malformed);
        }
        let validity = &certificate.validity;
        let constraints = certificate
            .name_constraints()
            .map_err(|_| AuthorityDefect::Constraints)?
            .map(|extension| Constraints::parse(extension.value))
            .transpose()?;
        let common_name = certificate.subject().iter_common_name().next();
        Ok(Self {
            subject: certificate.subject().to_string(),
            fingerprint: *digest(&SHA256, der)
                .as_ref()
                .as_array()
                .expect("SHA-256 has 32 bytes"),
            not_before: unix_seconds(validity.not_before),
            not_after: unix_seconds(validity.not_after),
            key_id: key_id(&certificate),
            constraints: constraints.unwrap_or_default(),
            common_name: common_name.and_then(|name| Some(name.as_str().ok()?.to_owned())),
            subject_der: certificate.subject().as_raw().to_vec(),
            issuer_der: certificate.issuer().as_raw().to_vec(),
            public_key: certificate.public_key().raw.to_vec(),
            may_issue: may_issue(&certificate),
        })
    }

    /// The hosts for which the authority may issue certificates; all if empty.
    #[must_use]
    pub fn permitted(&self) -> Vec<Subtree> {
        self.constraints.permitted_hosts()
    }

    pub(super) fn is_root(&self) -> bool {
        self.subject_der == self.issuer_der
    }

    /// Checks that the certificate can issue others with this key.
    pub(super) fn check_issuer(&self, key: &KeyPair) -> Result<(), AuthorityDefect> {
        if self.public_key != key.subject_public_key_info() {
            return Err(AuthorityDefect::Mismatch);
        }
        if !self.may_issue {
            return Err(AuthorityDefect::NotAnAuthority);
        }
        if self.key_id.is_empty() {
            return Err(AuthorityDefect::NoKeyId);
        }
        Ok(())
    }

    /// Checks that the certificate is valid at this time.
    pub(super) fn check_validity(&self, now: UnixTime) -> Result<(), AuthorityDefect> {
        if now.as_secs() < self.not_before {
            return Err(AuthorityDefect::NotYetValid);
        }
        if now.as_secs() >= self.not_after {
            return Err(AuthorityDefect::Expired);
        }
        Ok(())
    }

    /// The options with which [`super::Authority::create`] would make an authority like this one; `None` if there are none.
    pub(super) fn options(&self) -> Option<AuthorityOptions> {
        let days = self.not_after.checked_sub(self.not_before)? / DAY;
        let options = AuthorityOptions {
            common_name: self.common_name.clone()?,
            // notBefore is a day before the certificate was made.
            days: u16::try_from(days).ok()?.checked_sub(1)?,
            permitted: self.permitted(),
        };
        let is_reproducible =
            self.is_root() && Constraints::permit_only(&options.permitted) == self.constraints;
        is_reproducible.then_some(options)
    }
}

/// Checks that each certificate is followed by its issuer's.
pub(super) fn check_order(chain: &[CertificateDer<'_>]) -> Result<(), AuthorityDefect> {
    let facts: Vec<_> = chain
        .iter()
        .map(CertificateFacts::parse)
        .collect::<Result<_, _>>()?;
    if facts
        .array_windows()
        .all(|[certificate, next]| certificate.issuer_der == next.subject_der)
    {
        Ok(())
    } else {
        Err(AuthorityDefect::Order)
    }
}

/// Seconds since 1970; 0 for an earlier time.
fn unix_seconds(time: ASN1Time) -> u64 {
    time.timestamp().try_into().unwrap_or_default()
}

fn key_id(certificate: &X509Certificate<'_>) -> Vec<u8> {
    certificate
        .extensions()
        .iter()
        .find_map(|extension| match extension.parsed_extension() {
            ParsedExtension::SubjectKeyIdentifier(id) => Some(id.0.to_vec()),
            _ => None,
        })
        .unwrap_or_default()
}

fn may_issue(certificate: &X509Certificate<'_>) -> bool {
    let may_sign_certificates = certificate
        .key_usage()
        .is_ok_and(|usage| usage.is_none_or(|usage| usage.value.key_cert_sign()));
    may_sign_certificates && certificate.is_ca()
}
