//! What an authority's certificate looks like.

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, DnValue, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SerialNumber,
};
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::{CertificateDer, UnixTime};
use time::OffsetDateTime;
use x509_parser::parse_x509_certificate;

use super::constraints::Constraints;
use super::{Error, Facts, Fault, Options};

/// A new key and its certificate.
pub(super) fn make(
    options: &Options,
    now: UnixTime,
) -> Result<(KeyPair, CertificateDer<'static>), Error> {
    let key = KeyPair::generate()?;
    let serial = random_serial();
    let mut params = CertificateParams::default();
    // Clocks differ; a day is what most differ by at most.
    params.not_before = date(now.as_secs().saturating_sub(DAY))?;
    params.not_after = date(now.as_secs() + u64::from(options.days) * DAY)?;
    params.distinguished_name = name(&options.common_name, &serial);
    params.serial_number = Some(serial);
    // It issues leaves and no other authorities.
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.name_constraints = Constraints::only(&options.permitted).write();
    let certificate = params.self_signed(&key)?;
    Ok((key, certificate.into()))
}

/// Two authorities of one name, before and after a rotation, must not have one subject: some clients look for
/// an issuer by that alone, and try one.
fn name(common_name: &str, serial: &SerialNumber) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common_name);
    name.push(
        DnType::CustomDnType(SERIAL_NUMBER.to_vec()),
        DnValue::Utf8String(tag(serial)),
    );
    name
}

/// Enough of it to tell two things apart.
pub(super) fn tag(serial: &SerialNumber) -> String {
    let octets = serial.to_bytes();
    octets
        .iter()
        .take(4)
        .map(|octet| format!("{octet:02x}"))
        .collect()
}

/// Whether the issuer's name comes out as it stands in its certificate, octet for octet: clients compare it
/// so.
pub(super) fn check_name(issuer: &Issuer<'_, KeyPair>, facts: &Facts) -> Result<(), Fault> {
    let mut params = CertificateParams::default();
    params.serial_number = Some(random_serial());
    let probe = params
        .signed_by(issuer.key(), issuer)
        .map_err(|_| Fault::Name)?;
    let (_, probe) = parse_x509_certificate(probe.der()).map_err(|_| Fault::Name)?;
    match probe.issuer().as_raw() == facts.subject_der() {
        true => Ok(()),
        false => Err(Fault::Name),
    }
}

/// 128 random bits, which a leading zero octet makes a positive number of 17 octets at most (RFC 5280, section
/// 4.1.2.2, allows 20).
pub(crate) fn random_serial() -> SerialNumber {
    let mut octets = [0; 16];
    default_provider()
        .secure_random
        .fill(&mut octets)
        .expect("getrandom(2) does not fail after boot");
    SerialNumber::from_slice(&octets)
}

pub(crate) fn date(seconds: u64) -> Result<OffsetDateTime, rcgen::Error> {
    i64::try_from(seconds)
        .ok()
        .and_then(|seconds| OffsetDateTime::from_unix_timestamp(seconds).ok())
        .ok_or(rcgen::Error::Time)
}

/// Seconds.
pub(crate) const DAY: u64 = 24 * 60 * 60;
/// id-at-serialNumber (X.520): what tells subjects of one name apart.
const SERIAL_NUMBER: [u64; 4] = [2, 5, 4, 5];
