//! The rate limit for new certificates, per client.
//!
//! A client that asks for a new name with every connection pays a handshake for each; the proxy pays the handshake, a
//! signature, and the eviction of a certificate that is in use. Within bounds the client waits; beyond them it is
//! refused.

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
    /// For each client the time, in nanoseconds since `start`, until which it has used its rate up.
    used_until: Cache<IpAddr, Arc<AtomicU64>>,
}

impl MintLimiter {
    pub(super) fn new(per_second: u32) -> Self {
        Self {
            cost: SECOND / u64::from(per_second.max(1)),
            start: Instant::now(),
            // A client without a request for that long has its whole burst again, and need not be remembered.
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
    /// [`MintError::TooMany`] if that would be longer than [`MAX_WAIT`].
    pub(super) fn acquire(&self, client: IpAddr, now: Instant) -> Result<Duration, MintError> {
        let now = self.nanoseconds(now);
        let used_until = self
            .used_until
            .get_with(client_prefix(client), Arc::default);
        let charge = |used_until: u64| {
            let next = used_until.max(now).saturating_add(self.cost);
            (next, next.saturating_sub(now.saturating_add(SECOND)))
        };
        let charge_within_limit = |used_until: u64| {
            let (next, wait) = charge(used_until);
            (Duration::from_nanos(wait) <= MAX_WAIT).then_some(next)
        };
        match used_until.fetch_update(Ordering::Relaxed, Ordering::Relaxed, charge_within_limit) {
            Ok(before) => Ok(Duration::from_nanos(charge(before).1)),
            Err(_) => Err(MintError::TooMany),
        }
    }

    fn nanoseconds(&self, now: Instant) -> u64 {
        let now = now.saturating_duration_since(self.start).as_nanos();
        u64::try_from(now).unwrap_or(u64::MAX)
    }
}

/// How long a client waits for a certificate at most: less than its own timeout for a handshake.
pub(super) const MAX_WAIT: Duration = Duration::from_secs(4);
/// Nanoseconds.
const SECOND: u64 = 1_000_000_000;
/// Clients that are remembered. The least recently used one is evicted, which is too early only if more of them ask within
/// [`MAX_WAIT`] and a second, for as long as an entry matters.
const MAX_CLIENTS: u64 = 65_536;
