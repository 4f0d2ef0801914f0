//! The certificate authority: a P-256 key, and the certificate that clients are told to trust.
//!
//! Whoever has the key can be anybody to those clients. So it is made here and belongs to one installation,
//! is kept where its owner alone can read it, lasts a year unless told otherwise, and can be bound to the
//! names it is for. One brought from elsewhere has to be as strict.

use std::path::{Path, PathBuf};

use rcgen::{Issuer, KeyPair};
use rustls::pki_types::UnixTime;

use crate::host::Host;

mod ca_store;
mod constraints;
mod error;
mod facts;
pub mod mint;
mod pem;
mod profile;
#[cfg(test)]
mod tests;

pub use constraints::{NotPermitted, Permitted};
pub use error::{Error, Fault};
pub use facts::Facts;
pub use pem::of_certificates as to_pem;
pub(crate) use profile::{DAY, date, random_serial};
pub use rustls::pki_types::CertificateDer;

use ca_store::Kept;

/// What a new authority is to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// The name that people see in a list of authorities.
    pub common_name: String,
    /// How long it is good for. Clients have to trust its successor by then.
    pub days: u16,
    /// The hosts that it may speak for, as critical name constraints: a client accepts it for no others,
    /// whoever has the key. All hosts if empty.
    pub permitted: Vec<Permitted>,
}

/// A key that signs, and its certificate.
#[derive(Debug)]
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    facts: Facts,
    /// Its own certificate, then those that lead to a root, if it is not one.
    chain: Vec<CertificateDer<'static>>,
    /// Those of them that a server has to show after its own: all but a root.
    intermediates: Vec<CertificateDer<'static>>,
    /// Those of its predecessors that are still valid.
    previous: Vec<CertificateDer<'static>>,
}

impl Authority {
    /// Makes one and keeps it in `dir`, which is made too if it is not there (mode 0700). Of several that
    /// try at once one succeeds.
    ///
    /// # Errors
    /// [`Error::Exists`] if there is one already, [`Error::InTheWay`] if it is none that can be rotated: nothing is
    /// ever overwritten.
    pub fn create(dir: &Path, options: &Options) -> Result<Self, Error> {
        let kept = Kept::make(dir)?;
        let (key, certificate) = profile::make(options, UnixTime::now())?;
        match kept.put(&pem::of_authority(&key, &certificate)) {
            Err(Error::Exists { path }) => Err(Self::in_the_way(&kept, path)),
            put => put.and_then(|()| Self::open(dir)),
        }
    }

    /// What to do about one that is there already.
    fn in_the_way(kept: &Kept<'_>, path: PathBuf) -> Error {
        match Self::load(kept) {
            Ok(found) if found.facts.options().is_none() => {
                let fault = Fault::Foreign;
                Error::InTheWay { path, fault }
            }
            Err(Error::Unusable { path, fault }) => Error::InTheWay { path, fault },
            // What else is wrong is said by what replaces it.
            _ => Error::Exists { path },
        }
    }

    /// Reads the one that is kept in `dir`: made by [`Authority::create`], or brought from elsewhere as one
    /// file of a PKCS#8 key and certificates, the issuing one first.
    ///
    /// # Errors
    /// Others may read the key or write the directory; or it is not what clients accept.
    pub fn open(dir: &Path) -> Result<Self, Error> {
        let kept = Kept::at(dir)?;
        let authority = Self::load(&kept)?;
        let valid = authority.facts.check_time(UnixTime::now());
        valid.map_err(|fault| Error::Unusable {
            path: kept.path(),
            fault,
        })?;
        Ok(authority)
    }

    /// Makes one that is written nowhere and ends with this process.
    pub fn ephemeral(options: &Options) -> Result<Self, Error> {
        let (key, certificate) = profile::make(options, UnixTime::now())?;
        Self::read(&pem::of_authority(&key, &certificate)).map_err(Error::Made)
    }

    /// Replaces the authority in `dir` by a new one of the same name, length and constraints. The old key is
    /// gone; the old certificate stays among [`Authority::certificates`] until it expires, because a proxy
    /// that was started before still has the key.
    ///
    /// # Errors
    /// [`Fault::Foreign`] if it was not made by [`Authority::create`].
    pub fn rotate(dir: &Path) -> Result<Self, Error> {
        let kept = Kept::at(dir)?;
        let _lock = kept.lock()?;
        let old = Self::load(&kept)?;
        let path = kept.path();
        let foreign = Error::Unusable {
            path,
            fault: Fault::Foreign,
        };
        let options = old.facts.options().ok_or(foreign)?;
        let (key, certificate) = profile::make(&options, UnixTime::now())?;
        // First the old certificate: between the two it is there twice, never not at all.
        kept.replace_previous(&old.certificate_pem())?;
        kept.replace(&pem::of_authority(&key, &certificate))?;
        Self::open(dir)
    }

    /// Also one that has expired.
    fn load(kept: &Kept<'_>) -> Result<Self, Error> {
        let unusable = |path, fault| Error::Unusable { path, fault };
        let mut authority =
            Self::read(&kept.authority()?).map_err(|fault| unusable(kept.path(), fault))?;
        let previous = pem::certificates(&kept.previous()?);
        authority.previous = previous.map_err(|fault| unusable(kept.previous_path(), fault))?;
        authority.forget_expired(UnixTime::now());
        Ok(authority)
    }

    fn read(text: &str) -> Result<Self, Fault> {
        let key = pem::key(text)?;
        let chain = pem::certificates(text)?;
        let certificate = chain.first().ok_or(Fault::NoCertificate)?;
        let facts = Facts::of(certificate)?;
        facts.check(&key)?;
        facts::check_order(&chain)?;
        let issuer = Issuer::from_ca_cert_der(certificate, key).map_err(|_| Fault::Malformed)?;
        profile::check_name(&issuer, &facts)?;
        let is_root = |one: &CertificateDer<'_>| Facts::of(one).is_ok_and(|facts| facts.is_root());
        let intermediates = chain.iter().filter(|one| !is_root(one)).cloned().collect();
        Ok(Self {
            issuer,
            facts,
            chain,
            intermediates,
            previous: Vec::new(),
        })
    }

    fn forget_expired(&mut self, now: UnixTime) {
        self.previous.retain(|certificate| {
            Facts::of(certificate).is_ok_and(|facts| facts.not_after > now.as_secs())
        });
    }

    /// What its certificate says.
    #[must_use]
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// [`Authority::certificates`] as PEM: what clients are to trust.
    #[must_use]
    pub fn certificate_pem(&self) -> String {
        pem::of_certificates(&self.certificates())
    }

    /// The certificate that issues.
    #[must_use]
    pub fn certificate_der(&self) -> &CertificateDer<'static> {
        self.chain.first().expect("`read` found one")
    }

    /// The certificate that issues, then those that lead from it to its root: who trusts one of them trusts the leaves.
    #[must_use]
    pub fn chain(&self) -> &[CertificateDer<'static>] {
        &self.chain
    }

    /// All certificates of this authority: the one that issues, those that lead from it to its root, and its
    /// predecessors while they are valid. An upstream server must not be trusted for any of them.
    #[must_use]
    pub fn certificates(&self) -> Vec<CertificateDer<'static>> {
        self.chain.iter().chain(&self.previous).cloned().collect()
    }

    /// What the certificates of its predecessors say, as far as they are valid.
    #[must_use]
    pub fn predecessors(&self) -> Vec<Facts> {
        self.previous
            .iter()
            .filter_map(|one| Facts::of(one).ok())
            .collect()
    }

    /// What a server has to show after its own certificate: nothing if this authority is a root.
    pub(crate) fn intermediates(&self) -> &[CertificateDer<'static>] {
        &self.intermediates
    }

    /// The identifier that its certificate states, not one computed anew; leaves repeat it.
    #[must_use]
    pub fn subject_key_id(&self) -> &[u8] {
        &self.facts.key_id
    }

    /// Whether clients accept it for this host, by its name constraints.
    #[must_use]
    pub fn permits(&self, host: &Host) -> bool {
        self.facts.constraints.permits(host)
    }

    pub(crate) fn issuer(&self) -> &Issuer<'static, KeyPair> {
        &self.issuer
    }
}
