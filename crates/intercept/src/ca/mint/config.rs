//! The configuration of a mint.

use std::sync::Arc;
use std::time::Duration;

use rustls::time_provider::{DefaultTimeProvider, TimeProvider};

use super::error::MintError;

/// The configuration of a [`super::Mint`].
#[derive(Debug, Clone)]
pub struct MintConfig {
    /// The maximum number of cached certificates, each of which takes less than 2 KiB. The least used are evicted.
    pub capacity: u64,
    /// How long a leaf key is used: at least a minute, and at most a week, which is the lifetime of certificates.
    pub key_lifetime: Duration,
    /// New certificates that one client (an IPv4 address or an IPv6 /64) may cause in a second.
    pub per_client: u32,
    /// The wall clock.
    pub clock: Arc<dyn TimeProvider>,
}

impl Default for MintConfig {
    fn default() -> Self {
        Self {
            capacity: 10_000,
            key_lifetime: Duration::from_secs(24 * 60 * 60),
            per_client: PER_CLIENT,
            clock: Arc::new(DefaultTimeProvider),
        }
    }
}

impl MintConfig {
    /// Seconds since 1970, by the wall clock.
    pub(super) fn now(&self) -> Result<u64, MintError> {
        let now = self.clock.current_time().ok_or(MintError::Clock)?;
        Ok(now.as_secs())
    }
}

/// New certificates in a second. A gateway with hundreds of clients behind it, or a crawler, asks for fewer; making this many
/// takes a twentieth of a core's time.
const PER_CLIENT: u32 = 1000;
