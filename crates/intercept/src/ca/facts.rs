//! The fields of an authority's certificate, parsed once.

use aws_lc_rs::digest::{SHA256, digest};
use rcgen::{KeyPair, PublicKeyData};
use rustls::pki_types::{CertificateDer, UnixTime};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::ParsedExtension;
use x509_parser::parse_x509_certificate;

use super::constraints::{Constraints, Permitted};
use super::error::AuthorityDefect;
use super::options::AuthorityOptions;
use super::validity::DAY;

/// The fields of an authority's certificate.
#[derive(Debug, Clone)]
pub struct CertificateFacts {
    /// Its subject, as RFC 4514 writes names.
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
    subject_der: Vec<u8>,
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
        let (from, until) = (
            certificate.validity.not_before,
            certificate.validity.not_after,
        );
        let constraints = certificate
            .name_constraints()
            .map_err(|_| AuthorityDefect::Constraints)?;
        let constraints = constraints
            .map(|found| Constraints::parse(found.value))
            .transpose()?;
        let common_name = certificate.subject().iter_common_name().next();
        Ok(Self {
            subject: certificate.subject().to_string(),
            fingerprint: *digest(&SHA256, der)
                .as_ref()
                .as_array()
                .expect("SHA-256 has 32 bytes"),
            not_before: from.timestamp().try_into().unwrap_or_default(),
            not_after: until.timestamp().try_into().unwrap_or_default(),
            key_id: key_id(&certificate),
            constraints: constraints.unwrap_or_default(),
            common_name: common_name.and_then(|name| Some(name.as_str().ok()?.to_owned())),
            subject_der: certificate.subject().as_raw().to_vec(),
            issuer_der: certificate.issuer().as_raw().to_vec(),
            public_key: certificate.public_key().raw.to_vec(),
            may_issue: may_issue(&certificate),
        })
    }

    /// The hosts for which it may issue certificates; all if empty.
    #[must_use]
    pub fn permitted(&self) -> Vec<Permitted> {
        self.constraints.permitted_hosts()
    }

    /// Its subject in DER, which certificates that it issues repeat as issuer.
    pub(super) fn subject_der(&self) -> &[u8] {
        &self.subject_der
    }

    pub(super) fn is_root(&self) -> bool {
        self.subject_der == self.issuer_der
    }

    /// Checks that it can issue certificates with this key.
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

    /// Checks that it is valid at this time.
    pub(super) fn check_validity(&self, now: UnixTime) -> Result<(), AuthorityDefect> {
        if now.as_secs() < self.not_before {
            return Err(AuthorityDefect::NotYetValid);
        }
        if now.as_secs() >= self.not_after {
            return Err(AuthorityDefect::Expired);
        }
        Ok(())
    }

    /// The options with which [`super::Authority::create`] would make one like it; `None` if it can't.
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
    let follows = |pair: &[CertificateFacts]| match pair {
        [one, next] => one.issuer_der == next.subject_der,
        _ => true,
    };
    match facts.windows(2).all(follows) {
        true => Ok(()),
        false => Err(AuthorityDefect::Order),
    }
}

fn key_id(certificate: &X509Certificate<'_>) -> Vec<u8> {
    let stated = |extension: &ParsedExtension<'_>| match extension {
        ParsedExtension::SubjectKeyIdentifier(id) => Some(id.0.to_vec()),
        _ => None,
    };
    let mut extensions = certificate.extensions().iter();
    extensions
        .find_map(|extension| stated(extension.parsed_extension()))
        .unwrap_or_default()
}

fn may_issue(certificate: &X509Certificate<'_>) -> bool {
    let usage = match certificate.key_usage() {
        Ok(usage) => usage.is_none_or(|usage| usage.value.key_cert_sign()),
        Err(_) => false,
    };
    usage && certificate.is_ca()
}
