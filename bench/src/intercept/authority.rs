//! Two authorities: the proxies', by which they forge, and the origin's, which they must trust.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

/// Writes a new authority with a P-256 key as PEM.
///
/// # Errors
/// A file could not be written.
pub(crate) fn write(name: &str, certificate: &Path, key: &Path) -> Result<()> {
    let (params, pair) = authority(name)?;
    save(certificate, &params.self_signed(&pair)?.pem())?;
    save(key, &pair.serialize_pem())
}

/// Writes the origin's certificate for `*.DOMAIN`, its key, and the authority that signed it.
///
/// # Errors
/// A file could not be written.
pub(crate) fn write_origin(
    domain: &str,
    root: &Path,
    certificate: &Path,
    key: &Path,
) -> Result<()> {
    let (params, pair) = authority("benchmark origin root")?;
    save(root, &params.self_signed(&pair)?.pem())?;
    let issuer = Issuer::new(params, pair);
    let pair = KeyPair::generate()?;
    let mut params = CertificateParams::new([format!("*.{domain}")])?;
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = true;
    save(certificate, &params.signed_by(&pair, &issuer)?.pem())?;
    save(key, &pair.serialize_pem())
}

fn authority(name: &str) -> Result<(CertificateParams, KeyPair)> {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    Ok((params, KeyPair::generate()?))
}

fn save(path: &Path, pem: &str) -> Result<()> {
    fs::write(path, pem).with_context(|| format!("write {}", path.display()))
}
