//! Two CAs: the one that signs the proxies' leaf certificates, and the origin's, which the proxies must trust.

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

/// Writes a new CA with a P-256 key as PEM.
pub(crate) fn write_ca(name: &str, certificate: &Path, key: &Path) -> Result<()> {
    let (params, pair) = new_ca(name)?;
    save(certificate, &params.self_signed(&pair)?.pem())?;
    save(key, &pair.serialize_pem())
}

/// Writes the origin's root CA, and an intermediate CA with its key, which signs the hosts' certificates.
pub(crate) fn write_origin_ca(root: &Path, certificate: &Path, key: &Path) -> Result<()> {
    let (params, pair) = new_ca("benchmark origin root")?;
    save(root, &params.self_signed(&pair)?.pem())?;
    write_intermediate(&Issuer::new(params, pair), certificate, key)
}

/// Writes an intermediate CA with its key, signed by the root CA in these files.
pub(crate) fn write_intermediate_signed_by(
    (root, root_key): (&Path, &Path),
    certificate: &Path,
    key: &Path,
) -> Result<()> {
    write_intermediate(&read_issuer(root, root_key)?, certificate, key)
}

fn write_intermediate(issuer: &Issuer<'_, KeyPair>, certificate: &Path, key: &Path) -> Result<()> {
    let (mut params, pair) = new_ca("benchmark origin authority")?;
    params.use_authority_key_identifier_extension = true;
    save(certificate, &params.signed_by(&pair, issuer)?.pem())?;
    save(key, &pair.serialize_pem())
}

/// Certificates of the origin's hosts: one for each host, as real origins have. All have one key, because the cost of
/// the origin is not measured.
#[derive(Debug)]
pub(crate) struct HostCertificates {
    issuer: Issuer<'static, KeyPair>,
    intermediate: CertificateDer<'static>,
    key: KeyPair,
    signer: Arc<dyn SigningKey>,
    issued: Mutex<HashMap<String, Arc<CertifiedKey>>>,
}

impl HostCertificates {
    /// Reads the intermediate CA from the files of [`write_origin_ca`].
    pub(crate) fn read(certificate: &Path, key: &Path) -> Result<Self> {
        let host_key = KeyPair::generate()?;
        Ok(Self {
            issuer: read_issuer(certificate, key)?,
            intermediate: CertificateDer::from_pem_file(certificate)?,
            signer: signing_key(&host_key)?,
            key: host_key,
            issued: Mutex::default(),
        })
    }

    fn issue(&self, host: &str) -> Result<CertifiedKey> {
        let leaf = sign_leaf(host, &self.key, &self.issuer)?;
        let chain = vec![leaf, self.intermediate.clone()];
        Ok(CertifiedKey::new(chain, self.signer.clone()))
    }
}

impl ResolvesServerCert for HostCertificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let host = hello.server_name()?;
        let mut issued = self.issued.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = issued.get(host) {
            return Some(known.clone());
        }
        let issued_now = self
            .issue(host)
            .inspect_err(|error| eprintln!("certificate of {host}: {error:#}"));
        let new = Arc::new(issued_now.ok()?);
        issued.insert(host.to_owned(), new.clone());
        Some(new)
    }
}

/// Issues one certificate for all names below `domain`, signed by the CA in these files. A client that trusts that CA
/// needs only the leaf.
pub(crate) fn issue_wildcard(domain: &str, certificate: &Path, key: &Path) -> Result<CertifiedKey> {
    let issuer = read_issuer(certificate, key)?;
    let key = KeyPair::generate()?;
    let leaf = sign_leaf(&format!("*.{domain}"), &key, &issuer)?;
    Ok(CertifiedKey::new(vec![leaf], signing_key(&key)?))
}

fn read_issuer(certificate: &Path, key: &Path) -> Result<Issuer<'static, KeyPair>> {
    let read =
        |path: &Path| fs::read_to_string(path).with_context(|| format!("read {}", path.display()));
    let key = KeyPair::from_pem(&read(key)?)?;
    Ok(Issuer::from_ca_cert_pem(&read(certificate)?, key)?)
}

fn sign_leaf(
    name: &str,
    key: &KeyPair,
    issuer: &Issuer<'_, KeyPair>,
) -> Result<CertificateDer<'static>> {
    let mut params = CertificateParams::new([name.to_owned()])?;
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = true;
    Ok(params.signed_by(key, issuer)?.into())
}

fn signing_key(key: &KeyPair) -> Result<Arc<dyn SigningKey>> {
    let private = PrivatePkcs8KeyDer::from(key.serialize_der());
    Ok(any_ecdsa_type(&private.into())?)
}

fn new_ca(name: &str) -> Result<(CertificateParams, KeyPair)> {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    Ok((params, KeyPair::generate()?))
}

fn save(path: &Path, pem: &str) -> Result<()> {
    fs::write(path, pem).with_context(|| format!("write {}", path.display()))
}
