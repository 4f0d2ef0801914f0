//! Certificates for the hosts that clients ask for.
//!
//! With a key of its own for each host this would cost tens of microseconds (P-256) or a sixth of a second
//! (RSA). So one key serves all hosts for a day; a certificate then is one signature, and is kept while it is
//! in use.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};
use std::time::{Duration, Instant};

use moka::sync::Cache;
use rustls::ServerConfig;
use rustls::server::ClientHello;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::time_provider::{DefaultTimeProvider, TimeProvider};
use rustls::{CipherSuite, SignatureScheme};

use crate::ca::Authority;
use crate::host::Host;

#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod in_memory;
mod key_epoch;
mod leaf_certificate;
mod mint_limiter;
mod server_config;
#[cfg(test)]
mod tests;

use mint_limiter::Allowance;
pub(crate) use mint_limiter::household;
use key_epoch::{Key, Season};

/// What a client can deal with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Offer {
    /// Whether it can verify a handshake that a P-256 key signed. If not, it gets one of an RSA key; the
    /// certificate itself still has the authority's P-256 signature.
    pub ecdsa: bool,
}

impl Offer {
    /// Reads it off a ClientHello: the signature scheme, and a cipher suite to go with it (TLS 1.2 has others
    /// for RSA).
    #[must_use]
    pub fn of(hello: &ClientHello<'_>) -> Self {
        let scheme = hello
            .signature_schemes()
            .contains(&SignatureScheme::ECDSA_NISTP256_SHA256);
        Self {
            ecdsa: scheme && hello.cipher_suites().iter().any(goes_with_ecdsa),
        }
    }
}

/// What a [`Mint`] goes by.
#[derive(Debug, Clone)]
pub struct Settings {
    /// How many certificates are kept, those least used making way; each takes less than 2 KiB.
    pub capacity: u64,
    /// How long a leaf key is used. Certificates last a week, so at most that, and at least a minute.
    pub key_lifetime: Duration,
    /// New certificates that one client (an IPv4 address or an IPv6 /64) may cause in a second.
    pub per_client: u32,
    /// The wall clock.
    pub clock: Arc<dyn TimeProvider>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            capacity: 10_000,
            key_lifetime: Duration::from_secs(24 * 60 * 60),
            per_client: PER_CLIENT,
            clock: Arc::new(DefaultTimeProvider),
        }
    }
}

/// Why there is no certificate.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The client has asked for so many new ones that it would have to wait too long.
    #[error(
        "the client opens connections to too many new hosts at once; --certificates-per-client raises the limit"
    )]
    TooMany,
    /// Clients would refuse it.
    #[error("the authority may not speak for {0}, by the name constraints of its certificate")]
    NotPermitted(Host),
    /// It has expired since it was opened, or the clock is wrong.
    #[error("the authority's certificate is not valid now; see `peername ca show`, and the clock")]
    Authority,
    /// The wall clock can't be read.
    #[error("the wall clock can't be read")]
    Clock,
    /// Making it failed: the machine's fault, or ours.
    #[error("making a certificate: {0}")]
    Making(#[from] rcgen::Error),
    /// The same in the TLS library.
    #[error("making a certificate: {0}")]
    Tls(#[from] rustls::Error),
    /// The thread that made the RSA key is gone.
    #[error("making the RSA key: the thread did not end well")]
    Thread,
}

/// Makes certificates, and keeps those in use. Shared by all workers.
#[derive(Debug)]
pub struct Mint {
    settings: Settings,
    /// What all handshakes have in common, session tickets among it.
    base: ServerConfig,
    /// Without a certificate.
    refusing: Arc<ServerConfig>,
    season: RwLock<Arc<Season>>,
    /// Without what they have in common: to put the two together for a connection costs 0.1 µs.
    kept: Cache<Id, Arc<SingleCertAndKey>>,
    allowance: Allowance,
    issued: AtomicU64,
    hits: AtomicU64,
}

/// The first season of an authority that is not in use yet.
#[derive(Debug)]
pub(crate) struct Prepared(Season);

/// What a kept certificate is for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Id {
    season: u64,
    host: Host,
    offer: Offer,
}

impl Mint {
    /// With the defaults, but for how many certificates are kept.
    pub fn new(authority: Authority, capacity: u64) -> Result<Self, Error> {
        Self::with(
            authority,
            Settings {
                capacity,
                ..Settings::default()
            },
        )
    }

    /// Makes a leaf key. Fails if the authority is not valid by the clock given.
    pub fn with(authority: Authority, settings: Settings) -> Result<Self, Error> {
        let base = server_config::base(Arc::clone(&settings.clock))?;
        let season = Season::begin(0, Arc::new(authority), &settings)?;
        Ok(Self {
            refusing: Arc::new(base.clone()),
            base,
            season: RwLock::new(Arc::new(season)),
            kept: Cache::builder()
                .max_capacity(settings.capacity)
                .time_to_idle(IDLE)
                .build(),
            allowance: Allowance::new(settings.per_client),
            issued: AtomicU64::new(0),
            hits: AtomicU64::new(0),
            settings,
        })
    }

    /// What to answer a ClientHello with as `host`: TLS 1.2 and 1.3, and of the protocols in `alpn` the first
    /// that the client has too. However many ask at once for a host that is not kept, one certificate is
    /// made. Whether a client may cause one is for [`Mint::admit`] to say.
    ///
    /// Takes tens of microseconds; it waits only for the first client of a day without ECDSA, while a thread makes an
    /// RSA key.
    pub async fn server_config(
        &self,
        host: &Host,
        offer: Offer,
        alpn: &[&[u8]],
    ) -> Result<Arc<ServerConfig>, Error> {
        let season = self.season()?;
        let id = Id {
            season: season.number,
            host: host.clone(),
            offer,
        };
        let certified = if let Some(certified) = self.kept.get(&id) {
            self.hits.fetch_add(1, Ordering::Relaxed);
            certified
        } else {
            let key = season.key(offer).await?;
            self.mint(&season, &id, key)?
        };
        Ok(Arc::new(server_config::config(&self.base, certified, alpn)))
    }

    /// Whether a client may cause a certificate for this host, if there is none. A client that has caused its share of
    /// this second waits here.
    ///
    /// # Errors
    ///
    /// [`Error::TooMany`] if it would have to wait for longer than some seconds.
    pub async fn admit(&self, client: IpAddr, host: &Host) -> Result<(), Error> {
        if !self.has(host) {
            let wait = self.allowance.take(client, Instant::now())?;
            if !wait.is_zero() {
                tokio::time::sleep(wait).await;
            }
        }
        Ok(())
    }

    fn mint(&self, season: &Season, id: &Id, key: &Key) -> Result<Arc<SingleCertAndKey>, Error> {
        let mut ours = false;
        let made = self.kept.try_get_with_by_ref(id, || {
            ours = true;
            self.certify(&season.authority, &id.host, key)
        });
        self.hits.fetch_add(u64::from(!ours), Ordering::Relaxed);
        made.map_err(|error| Error::clone(&error))
    }

    fn has(&self, host: &Host) -> bool {
        let Ok(season) = self.season() else {
            return false;
        };
        let has = |ecdsa| {
            let id = Id {
                season: season.number,
                host: host.clone(),
                offer: Offer { ecdsa },
            };
            self.kept.contains_key(&id)
        };
        has(true) || has(false)
    }

    /// What to answer a ClientHello with that gets no certificate: an alert.
    pub(crate) fn refusing(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.refusing)
    }

    fn certify(
        &self,
        authority: &Authority,
        host: &Host,
        key: &Key,
    ) -> Result<Arc<SingleCertAndKey>, Error> {
        if !authority.permits(host) {
            return Err(Error::NotPermitted(host.clone()));
        }
        let leaf = key.pattern.leaf(host, authority)?;
        self.issued.fetch_add(1, Ordering::Relaxed);
        let chain = std::iter::once(leaf).chain(authority.intermediates().iter().cloned());
        let certified = CertifiedKey::new(chain.collect(), Arc::clone(&key.private));
        Ok(Arc::new(certified.into()))
    }

    /// The season that is good now by the wall clock, which may have jumped either way since the last call.
    fn season(&self) -> Result<Arc<Season>, Error> {
        let now = key_epoch::now(&self.settings)?;
        let current = Arc::clone(&self.season.read().unwrap_or_else(PoisonError::into_inner));
        if current.is_good(now) {
            return Ok(current);
        }
        let mut current = self.season.write().unwrap_or_else(PoisonError::into_inner);
        if !current.is_good(now) {
            let authority = Arc::clone(&current.authority);
            *current = Arc::new(Season::begin(
                current.number + 1,
                authority,
                &self.settings,
            )?);
            self.kept.invalidate_all();
        }
        Ok(Arc::clone(&current))
    }

    /// Makes a leaf key for another authority.
    ///
    /// # Errors
    ///
    /// The authority is not valid now.
    pub(crate) fn prepare(&self, authority: Authority) -> Result<Prepared, Error> {
        Season::begin(0, Arc::new(authority), &self.settings).map(Prepared)
    }

    /// Signs by that authority from now on.
    pub(crate) fn renew(&self, Prepared(mut season): Prepared) {
        let mut current = self.season.write().unwrap_or_else(PoisonError::into_inner);
        season.number = current.number + 1;
        *current = Arc::new(season);
        self.kept.invalidate_all();
    }

    /// Who signs.
    #[must_use]
    pub fn authority(&self) -> Arc<Authority> {
        let season = self.season.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&season.authority)
    }

    /// Certificates made so far.
    #[must_use]
    pub fn issued(&self) -> u64 {
        self.issued.load(Ordering::Relaxed)
    }

    /// Calls that were answered with one that was there, or that another call just made.
    #[must_use]
    pub fn cache_hits(&self) -> u64 {
        self.hits.load(Ordering::Relaxed)
    }
}

fn goes_with_ecdsa(suite: &CipherSuite) -> bool {
    use CipherSuite as Suite;
    matches!(
        suite,
        Suite::TLS13_AES_128_GCM_SHA256
            | Suite::TLS13_AES_256_GCM_SHA384
            | Suite::TLS13_CHACHA20_POLY1305_SHA256
            | Suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256
            | Suite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384
            | Suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256
    )
}

/// What a gateway with hundreds of clients behind it, or a crawler, does not come to, and what takes a twentieth of a
/// core.
const PER_CLIENT: u32 = 1000;
/// A host that nobody asks for during that time is forgotten: its memory is worth more than the signature.
const IDLE: Duration = Duration::from_secs(60 * 60);
