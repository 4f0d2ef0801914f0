//! What a leaf looks like: no more than what clients of today ask for.

use rcgen::{
    CertificateParams, DistinguishedName, ExtendedKeyUsagePurpose, KeyUsagePurpose, SanType,
};
use rustls::pki_types::CertificateDer;

use super::Error;
use super::season::{Key, Season};
use crate::authority::{Authority, date, random_serial};
use crate::host::Host;

/// One for this host and no other name, in the subject alternative name alone: a common name is read by
/// nobody any more (RFC 9525, section 2), and has no room for long ones. It has no subject key identifier,
/// for it issues nothing.
pub(super) fn make(
    host: &Host,
    authority: &Authority,
    season: &Season,
    key: &Key,
) -> Result<CertificateDer<'static>, Error> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.serial_number = Some(random_serial());
    params.not_before = date(season.validity.start)?;
    params.not_after = date(season.validity.end)?;
    params.subject_alt_names = vec![name(host)?];
    // Strict clients (Python since 3.13) refuse a leaf without it; rcgen repeats what the authority's
    // certificate states.
    params.use_authority_key_identifier_extension = true;
    // Both keys sign only: RSA key exchange is not to be had in rustls.
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    Ok(params.signed_by(&key.public, authority.issuer())?.into())
}

fn name(host: &Host) -> Result<SanType, Error> {
    Ok(match (host.as_ip(), host.as_name()) {
        (Some(ip), _) => SanType::IpAddress(ip),
        (None, name) => SanType::DnsName(name.unwrap_or_default().try_into()?),
    })
}
