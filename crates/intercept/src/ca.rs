//! The certificate authority: a P-256 key, and the certificate that clients are told to trust.
//!
//! A thief of the key can impersonate any server to those clients. So the key is made here and belongs to one installation,
//! its file is readable by its owner alone, it lasts a year by default, and name constraints can bind it to certain hosts.
//! An authority brought from elsewhere has to be as strict.

use std::path::{Path, PathBuf};

use rcgen::{Issuer, KeyPair};
use rustls::pki_types::UnixTime;

use crate::host::Host;

mod ca_store;
mod constraints;
mod error;
mod facts;
pub mod mint;
mod options;
mod pem;
pub mod pem_error;
pub(crate) mod profile;
mod subject_hash;
#[cfg(test)]
mod tests;
pub(crate) mod validity;

pub use constraints::{ParseSubtreeError, Subtree};
pub use error::{AuthorityDefect, CaError};
pub use facts::CertificateFacts;
pub use options::AuthorityOptions;
pub use pem::encode_certificates as to_pem;
pub use rustls::pki_types::CertificateDer;
pub use subject_hash::subject_hash;

use ca_store::CaStore;

/// A key that signs, and its certificate.
#[derive(Debug)]
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    facts: CertificateFacts,
    /// The authority's own certificate, then those that lead from it to a root, if it is no root itself.
    chain: Vec<CertificateDer<'static>>,
    /// The part of `chain` that a server has to send after its own certificate: all but a root.
    intermediates: Vec<CertificateDer<'static>>,
    /// Certificates of the authority's predecessors that are still valid.
    previous: Vec<CertificateDer<'static>>,
}

impl Authority {
    /// Makes an authority and stores it in `dir`, which is created too if it is missing (mode 0700). Of concurrent calls one
    /// succeeds.
    ///
    /// # Errors
    ///
    /// [`CaError::Exists`] if there is one already, [`CaError::InTheWay`] if there is a file that can't be rotated:
    /// nothing is ever overwritten. [`CaError::Io`], or one of the checks of [`Authority::open`].
    pub fn create(dir: &Path, options: &AuthorityOptions) -> Result<Self, CaError> {
        let store = CaStore::create(dir)?;
        let (key, certificate) = profile::make(options, UnixTime::now())?;
        match store.put(&pem::encode_authority(&key, &certificate)) {
            Err(CaError::Exists { path }) => Err(Self::explain_existing(&store, path)),
            put => put.and_then(|()| Self::open(dir)),
        }
    }

    /// The path of the file that changes when the authority in `dir` is made or rotated.
    #[must_use]
    pub fn file(dir: &Path) -> PathBuf {
        ca_store::authority_file(dir)
    }

    /// The error for an authority that exists already, with what to do about it.
    fn explain_existing(store: &CaStore<'_>, path: PathBuf) -> CaError {
        match Self::load(store) {
            Ok(found) if found.facts.options().is_none() => {
                let defect = AuthorityDefect::Foreign;
                CaError::InTheWay { path, defect }
            }
            Err(CaError::Unusable { path, defect }) => CaError::InTheWay { path, defect },
            // `rotate` reports whatever else is wrong.
            _ => CaError::Exists { path },
        }
    }

    /// Reads the authority in `dir`: made by [`Authority::create`], or brought from elsewhere as one file of a PKCS#8 key and
    /// certificates, the issuing one first.
    ///
    /// # Errors
    ///
    /// Other users may read the key or write the directory; or clients would not accept the authority.
    pub fn open(dir: &Path) -> Result<Self, CaError> {
        let store = CaStore::open(dir)?;
        let authority = Self::load(&store)?;
        match authority.facts.check_validity(UnixTime::now()) {
            Ok(()) => Ok(authority),
            Err(defect) => Err(CaError::Unusable {
                path: store.path(),
                defect,
            }),
        }
    }

    /// Makes an authority in memory, which is not stored.
    pub fn ephemeral(options: &AuthorityOptions) -> Result<Self, CaError> {
        let (key, certificate) = profile::make(options, UnixTime::now())?;
        Self::parse(&pem::encode_authority(&key, &certificate)).map_err(CaError::Made)
    }

    /// Replaces the authority in `dir` by a new one of the same name, lifetime and constraints. The old key is deleted; the
    /// old certificate stays among [`Authority::certificates`] until it expires, because a proxy that was started before
    /// still has the key. Of several hundred, the oldest are dropped earlier.
    ///
    /// # Errors
    ///
    /// [`AuthorityDefect::Foreign`] if it was not made by [`Authority::create`]; else those of [`Authority::open`].
    pub fn rotate(dir: &Path) -> Result<Self, CaError> {
        let store = CaStore::open(dir)?;
        let _lock = store.lock()?;
        let old = Self::load(&store)?;
        let Some(options) = old.facts.options() else {
            return Err(CaError::Unusable {
                path: store.path(),
                defect: AuthorityDefect::Foreign,
            });
        };
        let (key, certificate) = profile::make(&options, UnixTime::now())?;
        // The old certificate is written first: a crash between the two writes leaves it stored twice rather than lost.
        store.replace(&store.previous_path(), &old.newest_certificates_pem())?;
        store.replace(&store.path(), &pem::encode_authority(&key, &certificate))?;
        Self::open(dir)
    }

    /// Reads an authority, which may have expired.
    fn load(store: &CaStore<'_>) -> Result<Self, CaError> {
        let unusable = |path, defect| CaError::Unusable { path, defect };
        let mut authority = Self::parse(&store.read_authority()?)
            .map_err(|defect| unusable(store.path(), defect))?;
        let previous = pem::parse_certificates(&store.read_previous()?);
        authority.previous = previous.map_err(|defect| unusable(store.previous_path(), defect))?;
        authority.drop_expired(UnixTime::now());
        Ok(authority)
    }

    fn parse(text: &str) -> Result<Self, AuthorityDefect> {
        let key = pem::parse_key(text)?;
        let chain = pem::parse_certificates(text)?;
        let certificate = chain.first().ok_or(AuthorityDefect::NoCertificate)?;
        let facts = CertificateFacts::parse(certificate)?;
        facts.check_issuer(&key)?;
        facts::check_order(&chain)?;
        let issuer =
            Issuer::from_ca_cert_der(certificate, key).map_err(|_| AuthorityDefect::Malformed)?;
        profile::check_name(&issuer, &facts)?;
        let is_root = |certificate: &CertificateDer<'_>| {
            CertificateFacts::parse(certificate).is_ok_and(|facts| facts.is_root())
        };
        let intermediates = chain
            .iter()
            .filter(|certificate| !is_root(certificate))
            .cloned()
            .collect();
        Ok(Self {
            issuer,
            facts,
            chain,
            intermediates,
            previous: Vec::new(),
        })
    }

    fn drop_expired(&mut self, now: UnixTime) {
        self.previous.retain(|certificate| {
            CertificateFacts::parse(certificate).is_ok_and(|facts| facts.not_after > now.as_secs())
        });
    }

    /// The fields of the authority's certificate.
    #[must_use]
    pub fn facts(&self) -> &CertificateFacts {
        &self.facts
    }

    /// [`Authority::certificates`] as PEM, which clients have to trust.
    #[must_use]
    pub fn certificate_pem(&self) -> String {
        pem::encode_certificates(&self.certificates())
    }

    /// The newest of [`Authority::certificates`] as PEM, as many as the store keeps.
    fn newest_certificates_pem(&self) -> String {
        let mut text = String::new();
        for certificate in self.chain.iter().chain(&self.previous) {
            let section = pem::encode_certificates(std::slice::from_ref(certificate));
            if text.len() + section.len() > MAX_PREVIOUS {
                break;
            }
            text += &section;
        }
        text
    }

    /// The certificate that issues.
    #[must_use]
    pub fn certificate_der(&self) -> &CertificateDer<'static> {
        self.chain.first().expect("`parse` found one")
    }

    /// The certificate that issues, then those that lead from it to its root: a client that trusts one of them trusts the
    /// leaves.
    #[must_use]
    pub fn chain(&self) -> &[CertificateDer<'static>] {
        &self.chain
    }

    /// All certificates of this authority: the one that issues, those that lead from it to its root, and those of its
    /// predecessors while they are valid. No origin may be trusted because of one of them.
    #[must_use]
    pub fn certificates(&self) -> Vec<CertificateDer<'static>> {
        self.chain.iter().chain(&self.previous).cloned().collect()
    }

    /// The fields of its predecessors' certificates that are still valid.
    #[must_use]
    pub fn predecessors(&self) -> Vec<CertificateFacts> {
        self.previous
            .iter()
            .filter_map(|certificate| CertificateFacts::parse(certificate).ok())
            .collect()
    }

    /// The certificates that a server has to send after its own: none if this authority is a root.
    pub(crate) fn intermediates(&self) -> &[CertificateDer<'static>] {
        &self.intermediates
    }

    /// The subject key identifier in the authority's certificate, which leaves repeat.
    #[must_use]
    pub fn subject_key_id(&self) -> &[u8] {
        &self.facts.key_id
    }

    /// Whether the name constraints let clients accept a leaf for this host.
    #[must_use]
    pub fn permits(&self, host: &Host) -> bool {
        self.facts.constraints.permits(host)
    }

    pub(crate) fn issuer(&self) -> &Issuer<'static, KeyPair> {
        &self.issuer
    }
}

/// The maximum size of the predecessors' certificates as PEM, in bytes: some 700 of them.
const MAX_PREVIOUS: usize = 512 * 1024;
