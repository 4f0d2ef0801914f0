//! The rate limit for new certificates, per client.
//!
//! A client that asks for a new name with every connection pays a handshake for each; the proxy pays the handshake, a
//! signature, and the eviction of a certificate that is in use. A client over its limit waits, and is refused if it would
//! have to wait too long.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use moka::policy::EvictionPolicy;
use moka::sync::Cache;
use peername_server::access::client_limit::client_prefix;

use super::error::MintError;

/// A rate limiter (GCRA) for each client, with a burst of one second's certificates.
#[derive(Debug)]
pub(super) struct MintLimiter {
    /// Nanoseconds of the second that one certificate costs.
    cost: u64,
    start: Instant,
    /// The time until which each client has used up its rate, in nanoseconds since `start`.
    used_until: Cache<IpAddr, Arc<AtomicU64>>,
}

impl MintLimiter {
    pub(super) fn new(per_second: u32) -> Self {
        Self {
            cost: SECOND / u64::from(per_second.max(1)),
            start: Instant::now(),
            // A client that has asked for nothing for this long has its whole burst again, and need not be remembered.
            used_until: Cache::builder()
                .max_capacity(MAX_CLIENTS)
                .eviction_policy(EvictionPolicy::lru())
                .time_to_idle(MAX_WAIT + Duration::from_nanos(SECOND))
                .build(),
        }
    }

    /// Acquires one certificate, and returns how long the client has to wait for it.
    ///
    /// # Errors
    ///
    /// [`MintError::TooMany`] if the client would have to wait for longer than [`MAX_WAIT`].
    pub(super) fn acquire(&self, client: IpAddr, now: Instant) -> Result<Duration, MintError> {
        let now = self.nanoseconds(now);
        let used_until = self
            .used_until
            .get_with(client_prefix(client), Arc::default);
        let charge = |before: u64| before.max(now).saturating_add(self.cost);
        let wait =
            |after: u64| Duration::from_nanos(after.saturating_sub(now.saturating_add(SECOND)));
        let charged = used_until.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |before| {
            let after = charge(before);
            (wait(after) <= MAX_WAIT).then_some(after)
        });
        match charged {
            Ok(before) => Ok(wait(charge(before))),
            Err(_) => Err(MintError::TooMany),
        }
    }

    fn nanoseconds(&self, now: Instant) -> u64 {
        let now = now.saturating_duration_since(self.start).as_nanos();
        u64::try_from(now).unwrap_or(u64::MAX)
    }
}

/// How long a client waits for a certificate at most: less than clients' timeouts for a handshake.
pub(super) const MAX_WAIT: Duration = Duration::from_secs(4);
/// Nanoseconds of a second.
const SECOND: u64 = 1_000_000_000;
/// Clients that are remembered. An entry matters for [`MAX_WAIT`] and a second, so the least recently used client is evicted
/// too early only if more clients than this ask within that time.
const MAX_CLIENTS: u64 = 65_536;
