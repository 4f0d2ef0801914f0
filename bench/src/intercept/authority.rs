//! Two authorities: the proxies', by which they forge, and the origin's, which they must trust.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use rustls::crypto::aws_lc_rs::sign::any_ecdsa_type;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::{CertifiedKey, SigningKey};

/// Writes a new authority with a P-256 key as PEM.
///
/// # Errors
/// A file could not be written.
pub(crate) fn write(name: &str, certificate: &Path, key: &Path) -> Result<()> {
    let (params, pair) = authority(name)?;
    save(certificate, &params.self_signed(&pair)?.pem())?;
    save(key, &pair.serialize_pem())
}

/// Writes the origin's root, and an authority below it with its key, which certifies hosts.
///
/// # Errors
/// A file could not be written.
pub(crate) fn write_origin(root: &Path, certificate: &Path, key: &Path) -> Result<()> {
    let (params, pair) = authority("benchmark origin root")?;
    save(root, &params.self_signed(&pair)?.pem())?;
    let issuer = Issuer::new(params, pair);
    let (mut params, pair) = authority("benchmark origin authority")?;
    params.use_authority_key_identifier_extension = true;
    save(certificate, &params.signed_by(&pair, &issuer)?.pem())?;
    save(key, &pair.serialize_pem())
}

/// Certificates of the origin's hosts: each its own, as origins have them, all of one key, for it is not the origin
/// that is measured.
#[derive(Debug)]
pub(crate) struct Hosts {
    issuer: Issuer<'static, KeyPair>,
    between: CertificateDer<'static>,
    key: KeyPair,
    signer: Arc<dyn SigningKey>,
    made: Mutex<HashMap<String, Arc<CertifiedKey>>>,
}

impl Hosts {
    /// From the files of [`write_origin`].
    ///
    /// # Errors
    /// A file is not what it should be.
    pub(crate) fn read(certificate: &Path, key: &Path) -> Result<Self> {
        let key_of_hosts = KeyPair::generate()?;
        Ok(Self {
            issuer: issuer(certificate, key)?,
            between: CertificateDer::from_pem_file(certificate)?,
            signer: signer(&key_of_hosts)?,
            key: key_of_hosts,
            made: Mutex::default(),
        })
    }

    fn make(&self, host: &str) -> Result<CertifiedKey> {
        let leaf = leaf(host, &self.key, &self.issuer)?;
        let chain = vec![leaf, self.between.clone()];
        Ok(CertifiedKey::new(chain, self.signer.clone()))
    }
}

impl ResolvesServerCert for Hosts {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let host = hello.server_name()?;
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(made) = made.get(host) {
            return Some(made.clone());
        }
        let new = Arc::new(self.make(host).ok()?);
        made.insert(host.to_owned(), new.clone());
        Some(new)
    }
}

/// One certificate for all names below `domain`, of the authority in these files. Who believes that authority
/// needs nothing but the leaf.
///
/// # Errors
/// A file is not what it should be.
pub(crate) fn wildcard(domain: &str, certificate: &Path, key: &Path) -> Result<CertifiedKey> {
    let issuer = issuer(certificate, key)?;
    let key = KeyPair::generate()?;
    let leaf = leaf(&format!("*.{domain}"), &key, &issuer)?;
    Ok(CertifiedKey::new(vec![leaf], signer(&key)?))
}

fn issuer(certificate: &Path, key: &Path) -> Result<Issuer<'static, KeyPair>> {
    let read =
        |path: &Path| fs::read_to_string(path).with_context(|| format!("read {}", path.display()));
    let key = KeyPair::from_pem(&read(key)?)?;
    Ok(Issuer::from_ca_cert_pem(&read(certificate)?, key)?)
}

fn leaf(
    name: &str,
    key: &KeyPair,
    issuer: &Issuer<'_, KeyPair>,
) -> Result<CertificateDer<'static>> {
    let mut params = CertificateParams::new([name.to_owned()])?;
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = true;
    Ok(params.signed_by(key, issuer)?.into())
}

fn signer(key: &KeyPair) -> Result<Arc<dyn SigningKey>> {
    let private = PrivatePkcs8KeyDer::from(key.serialize_der());
    Ok(any_ecdsa_type(&private.into())?)
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
