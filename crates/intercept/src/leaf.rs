//! Certificates for the hosts that clients ask for.

use std::net::IpAddr;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::server::ClientHello;

use crate::authority::Authority;
use crate::host::Host;

/// What a client can deal with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offer {
    /// Whether it can verify a signature of a P-256 key.
    pub ecdsa: bool,
}

impl Offer {
    /// Reads it off a ClientHello.
    #[must_use]
    pub fn of(_hello: &ClientHello<'_>) -> Self {
        todo!()
    }
}

/// Makes certificates, and keeps those in use.
#[derive(Debug)]
pub struct Mint {}

/// Why there is no certificate.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {}

impl Mint {
    /// `capacity` counts certificates kept.
    pub fn new(_authority: Authority, _capacity: u64) -> Result<Self, Error> {
        todo!()
    }

    /// What to answer this client's ClientHello with as `host`. Waits only for the RSA key, once a day at
    /// most. `client` pays for a new certificate out of its allowance.
    pub async fn server_config(
        &self,
        _client: IpAddr,
        _host: &Host,
        _offer: Offer,
        _alpn: &[&[u8]],
    ) -> Result<Arc<ServerConfig>, Error> {
        todo!()
    }

    /// The authority that signs.
    #[must_use]
    pub fn authority(&self) -> &Authority {
        todo!()
    }

    /// Certificates made so far.
    #[must_use]
    pub fn issued(&self) -> u64 {
        todo!()
    }

    /// Handshakes answered with one that was there.
    #[must_use]
    pub fn cache_hits(&self) -> u64 {
        todo!()
    }
}
