//! The certificate authority: a P-256 key and the certificate that clients are told to trust.

use std::path::Path;

use ipnet::IpNet;
use rustls::pki_types::CertificateDer;

use crate::host::Host;

/// What a new authority is to be.
#[derive(Debug, Clone)]
pub struct Options {
    /// The name that people see in a list of authorities.
    pub common_name: String,
    /// How long it is good for.
    pub days: u16,
    /// The hosts that it may speak for, as critical name constraints; all if empty.
    pub permitted: Vec<Permitted>,
}

/// Hosts that an authority may speak for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Permitted {
    /// A name and all below it.
    Name(Host),
    /// Addresses.
    Network(IpNet),
}

/// A key that signs, and its certificate.
#[derive(Debug)]
pub struct Authority {}

/// Why there is no authority, with what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {}

impl Authority {
    /// Makes one and keeps it in `dir`, which is made if it is not there. Never overwrites.
    pub fn create(_dir: &Path, _options: &Options) -> Result<Self, Error> {
        todo!()
    }

    /// Reads the one that is kept in `dir`.
    pub fn open(_dir: &Path) -> Result<Self, Error> {
        todo!()
    }

    /// Makes one that is never written anywhere and ends with the process.
    pub fn ephemeral(_options: &Options) -> Result<Self, Error> {
        todo!()
    }

    /// The certificate that clients are to trust, as PEM.
    #[must_use]
    pub fn certificate_pem(&self) -> &str {
        todo!()
    }

    /// The same in DER.
    #[must_use]
    pub fn certificate_der(&self) -> &CertificateDer<'static> {
        todo!()
    }

    /// All certificates of this authority, the current one first, then those before it: what an upstream
    /// must never be trusted for.
    #[must_use]
    pub fn certificates(&self) -> &[CertificateDer<'static>] {
        todo!()
    }

    /// The identifier that its certificate states; leaves repeat it.
    #[must_use]
    pub fn subject_key_id(&self) -> &[u8] {
        todo!()
    }

    /// Whether it may speak for this host, by its certificate's name constraints.
    #[must_use]
    pub fn permits(&self, _host: &Host) -> bool {
        todo!()
    }
}
