//! The mint: makes and caches leaf certificates for the hosts that clients ask for.
//!
//! A key for each host would cost tens of microseconds (P-256) or a sixth of a second (RSA). So one key serves all hosts
//! for a day; a certificate then costs one signature, and is cached while it is in use.

pub mod client_support;
pub mod config;
pub mod error;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod in_memory;
mod key_epoch;
mod leaf_certificate;
mod mint_limiter;
mod server_config;
#[cfg(test)]
mod tests;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use moka::sync::Cache;
use parking_lot::RwLock;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;
use rustls::ServerConfig;
use rustls::sign::{CertifiedKey, SingleCertAndKey};

use super::Authority;
use crate::host::Host;
use client_support::ClientSupport;
use config::MintConfig;
use error::MintError;
use key_epoch::{KeyEpoch, LeafKey};
use leaf_certificate::sign_leaf;
use mint_limiter::MintLimiter;

/// Makes leaf certificates, and caches those in use. Shared by all workers.
#[derive(Debug)]
pub struct Mint {
    config: MintConfig,
    /// The configuration that all handshakes share, session tickets included.
    base: ServerConfig,
    /// A configuration without a certificate: its handshakes fail with an alert.
    refusing: Arc<ServerConfig>,
    epoch: RwLock<Arc<KeyEpoch>>,
    /// Certificates without `base`: combining the two for a connection costs 0.1 µs.
    cache: Cache<CacheKey, Arc<SingleCertAndKey>>,
    limiter: MintLimiter,
    issued: Counter,
    hits: Counter,
}

/// The first key epoch of an authority that is not in use yet.
#[derive(Debug)]
pub(crate) struct PreparedEpoch(KeyEpoch);

/// Identifies a cached certificate.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct CacheKey {
    epoch: u64,
    host: Host,
    support: ClientSupport,
}

impl Mint {
    /// Makes a mint with the default configuration, except that it caches up to `capacity` certificates.
    pub fn new(authority: Authority, capacity: u64) -> Result<Self, MintError> {
        Self::with_config(
            authority,
            MintConfig {
                capacity,
                ..MintConfig::default()
            },
        )
    }

    /// Makes a mint and its first leaf key.
    ///
    /// # Errors
    ///
    /// [`MintError::Authority`] if the authority is not valid by the configured clock; or making the key failed.
    pub fn with_config(authority: Authority, config: MintConfig) -> Result<Self, MintError> {
        let base = server_config::base(Arc::clone(&config.clock))?;
        let epoch = KeyEpoch::begin(0, Arc::new(authority), &config)?;
        Ok(Self {
            refusing: Arc::new(base.clone()),
            base,
            epoch: RwLock::new(Arc::new(epoch)),
            cache: Cache::builder()
                .max_capacity(config.capacity)
                .time_to_idle(CERTIFICATE_IDLE)
                .build(),
            limiter: MintLimiter::new(config.per_client),
            issued: Counter::default(),
            hits: Counter::default(),
            config,
        })
    }

    /// The server configuration for a handshake as `host`: TLS 1.2 and 1.3, and the first protocol in `alpn` that the client
    /// also supports. Single flight: concurrent calls for a host that is not cached make one certificate. [`Mint::admit`]
    /// decides whether a client may cause a new one.
    ///
    /// Takes tens of microseconds. It waits only while a thread makes the RSA key for the first client without ECDSA in a key
    /// epoch.
    pub async fn server_config(
        &self,
        host: &Host,
        support: ClientSupport,
        alpn: &[&[u8]],
    ) -> Result<Arc<ServerConfig>, MintError> {
        let epoch = self.current_epoch()?;
        let cache_key = CacheKey {
            epoch: epoch.number,
            host: host.clone(),
            support,
        };
        let certified = if let Some(certified) = self.cache.get(&cache_key) {
            self.hits.inc();
            certified
        } else {
            let key = epoch.key(support).await?;
            self.issue_certificate(&epoch, &cache_key, key)?
        };
        let mut config = self.base.clone();
        config.cert_resolver = certified;
        config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
        Ok(Arc::new(config))
    }

    /// Admits a client to a certificate for this host. A host without a cached certificate, of either key type, counts against
    /// the client's rate limit; a client that is over its limit waits here.
    pub async fn admit(&self, client: IpAddr, host: &Host) -> Result<(), MintError> {
        if !self.has_cached(host) {
            let wait = self.limiter.acquire(client, Instant::now())?;
            if !wait.is_zero() {
                tokio::time::sleep(wait).await;
            }
        }
        Ok(())
    }

    fn issue_certificate(
        &self,
        epoch: &KeyEpoch,
        cache_key: &CacheKey,
        key: &LeafKey,
    ) -> Result<Arc<SingleCertAndKey>, MintError> {
        let mut is_new = false;
        let certified = self.cache.try_get_with_by_ref(cache_key, || {
            is_new = true;
            self.certify(epoch, &cache_key.host, key)
        });
        if !is_new && certified.is_ok() {
            self.hits.inc();
        }
        certified.map_err(|error| MintError::clone(&error))
    }

    fn has_cached(&self, host: &Host) -> bool {
        let Ok(epoch) = self.current_epoch() else {
            return false;
        };
        let has = |ecdsa| {
            let cache_key = CacheKey {
                epoch: epoch.number,
                host: host.clone(),
                support: ClientSupport { ecdsa },
            };
            self.cache.contains_key(&cache_key)
        };
        has(true) || has(false)
    }

    /// The server configuration for a client that gets no certificate but an alert.
    pub(crate) fn refusing_config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.refusing)
    }

    fn certify(
        &self,
        epoch: &KeyEpoch,
        host: &Host,
        key: &LeafKey,
    ) -> Result<Arc<SingleCertAndKey>, MintError> {
        let authority = &epoch.authority;
        if !authority.permits(host) {
            return Err(MintError::NotPermitted(host.clone()));
        }
        let leaf = sign_leaf(host, &key.pair, authority, &epoch.validity)?;
        self.issued.inc();
        let chain = std::iter::once(leaf).chain(authority.intermediates().iter().cloned());
        let certified = CertifiedKey::new(chain.collect(), Arc::clone(&key.private));
        Ok(Arc::new(certified.into()))
    }

    /// The key epoch that is valid now by the wall clock, which may have jumped either way since the last call.
    fn current_epoch(&self) -> Result<Arc<KeyEpoch>, MintError> {
        let now = self.config.now()?;
        let current = Arc::clone(&self.epoch.read());
        if current.is_valid(now) {
            return Ok(current);
        }
        let mut current = self.epoch.write();
        if !current.is_valid(now) {
            let authority = Arc::clone(&current.authority);
            *current = Arc::new(KeyEpoch::begin(
                current.number + 1,
                authority,
                &self.config,
            )?);
            self.cache.invalidate_all();
        }
        Ok(Arc::clone(&current))
    }

    /// Makes a leaf key for another authority; [`Mint::renew`] puts it into use.
    pub(crate) fn prepare(&self, authority: Authority) -> Result<PreparedEpoch, MintError> {
        KeyEpoch::begin(0, Arc::new(authority), &self.config).map(PreparedEpoch)
    }

    /// Signs with the prepared authority from now on.
    pub(crate) fn renew(&self, PreparedEpoch(mut epoch): PreparedEpoch) {
        let mut current = self.epoch.write();
        epoch.number = current.number + 1;
        *current = Arc::new(epoch);
        self.cache.invalidate_all();
    }

    /// The authority that signs.
    #[must_use]
    pub fn authority(&self) -> Arc<Authority> {
        let epoch = self.epoch.read();
        Arc::clone(&epoch.authority)
    }

    /// Registers the counters.
    pub(crate) fn register(&self, registry: &mut Registry) {
        registry.register(
            "peername_certificates_issued",
            "Certificates made for hosts",
            self.issued.clone(),
        );
        registry.register(
            "peername_certificate_cache_hits",
            "Handshakes answered with a cached certificate",
            self.hits.clone(),
        );
    }

    /// Certificates made so far.
    #[must_use]
    pub fn issued(&self) -> u64 {
        self.issued.get()
    }

    /// Calls that were answered with a cached certificate, or with one that a concurrent call made.
    #[must_use]
    pub fn cache_hits(&self) -> u64 {
        self.hits.get()
    }
}

/// How long an unused certificate is cached. After that its memory is worth more than the signature for a new one.
const CERTIFICATE_IDLE: Duration = Duration::from_secs(60 * 60);
