//! The profile of an authority's certificate.

use rcgen::string::PrintableString;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, DnValue, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SerialNumber,
};
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::{CertificateDer, UnixTime};
use x509_parser::parse_x509_certificate;

use super::constraints::Constraints;
use super::error::{AuthorityDefect, CaError};
use super::facts::CertificateFacts;
use super::options::AuthorityOptions;
use super::validity::{DAY, date};

/// Makes a new key and its certificate.
pub(super) fn make(
    options: &AuthorityOptions,
    now: UnixTime,
) -> Result<(KeyPair, CertificateDer<'static>), CaError> {
    let key = KeyPair::generate()?;
    let serial = random_serial();
    let mut params = CertificateParams::default();
    // Clients' clocks may be behind; few are by more than a day.
    params.not_before = date(now.as_secs().saturating_sub(DAY))?;
    params.not_after = date(now.as_secs() + u64::from(options.days) * DAY)?;
    params.distinguished_name = subject(&options.common_name, &serial);
    params.serial_number = Some(serial);
    // A path length of 0: it issues leaves and no other authorities.
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.name_constraints = Constraints::permit_only(&options.permitted).to_rcgen();
    let certificate = params.self_signed(&key)?;
    Ok((key, certificate.into()))
}

/// The subject: common name and a serial number. The authorities before and after a rotation have the same common name and need
/// different subjects: some clients find an issuer by the subject alone, and try only one.
fn subject(common_name: &str, serial: &SerialNumber) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common_name);
    name.push(
        DnType::CustomDnType(SERIAL_NUMBER.to_vec()),
        DnValue::PrintableString(tag(serial)),
    );
    name
}

/// The first bytes of a serial number in hexadecimal: enough to tell two authorities apart.
fn tag(serial: &SerialNumber) -> PrintableString {
    let bytes = serial.to_bytes();
    let digits: String = bytes
        .iter()
        .take(4)
        .map(|byte| format!("{byte:02x}"))
        .collect();
    digits
        .try_into()
        .expect("PrintableString has letters and digits")
}

/// Checks that rcgen writes the issuer's name byte for byte as the issuer's certificate has it: clients compare the bytes.
pub(super) fn check_name(
    issuer: &Issuer<'_, KeyPair>,
    facts: &CertificateFacts,
) -> Result<(), AuthorityDefect> {
    let mut params = CertificateParams::default();
    params.serial_number = Some(random_serial());
    let probe = params
        .signed_by(issuer.key(), issuer)
        .map_err(|_| AuthorityDefect::Name)?;
    let (_, probe) = parse_x509_certificate(probe.der()).map_err(|_| AuthorityDefect::Name)?;
    if probe.issuer().as_raw() == facts.subject_der {
        Ok(())
    } else {
        Err(AuthorityDefect::Name)
    }
}

/// 128 random bits, which a leading zero byte makes a positive number of 17 bytes at most (RFC 5280, section 4.1.2.2,
/// allows 20).
pub(crate) fn random_serial() -> SerialNumber {
    let mut bytes = [0; 16];
    default_provider()
        .secure_random
        .fill(&mut bytes)
        .expect("getrandom(2) does not fail after boot");
    SerialNumber::from_slice(&bytes)
}

/// id-at-serialNumber (X.520), by which subjects of the same common name differ: a PrintableString (RFC 5280, appendix A.1).
const SERIAL_NUMBER: [u64; 4] = [2, 5, 4, 5];
