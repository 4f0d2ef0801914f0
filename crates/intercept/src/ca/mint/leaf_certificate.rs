//! Leaf certificates, with only those fields that current clients require.

use std::ops::Range;

use rcgen::{
    CertificateParams, DistinguishedName, ExtendedKeyUsagePurpose, KeyPair, KeyUsagePurpose,
    SanType,
};
use rustls::pki_types::CertificateDer;

use super::error::MintError;
use crate::ca::Authority;
use crate::ca::profile::random_serial;
use crate::ca::validity::date;
use crate::host::{Host, Kind};

/// Signs a leaf for this key, with this host as its only name. `validity` is notBefore and notAfter, in seconds since 1970.
///
/// No subject: clients don't read the common name any more (RFC 9525, section 2), and long names don't fit in it. No subject key
/// identifier: a leaf issues nothing.
pub(super) fn sign_leaf(
    host: &Host,
    key: &KeyPair,
    authority: &Authority,
    validity: &Range<u64>,
) -> Result<CertificateDer<'static>, MintError> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.serial_number = Some(random_serial());
    params.not_before = date(validity.start)?;
    params.not_after = date(validity.end)?;
    // Strict clients (Python since 3.13) refuse a leaf without it; rcgen repeats what the authority's certificate states.
    params.use_authority_key_identifier_extension = true;
    // Both keys only sign: rustls has no RSA key exchange.
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    // Critical, because there is no subject (RFC 5280, section 4.2.1.6).
    params.subject_alt_names = vec![match host.kind() {
        Kind::Ip(ip) => SanType::IpAddress(*ip),
        Kind::Name(name) => SanType::DnsName((&**name).try_into()?),
    }];
    Ok(params.signed_by(key, authority.issuer())?.into())
}
