//! How many new certificates a client may cause.
//!
//! A client that asks for a new name with every connection pays a handshake for each; we pay that, a
//! signature, and the place of a certificate that is in use. Within bounds the client waits; beyond them it is refused.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use moka::sync::Cache;

use super::Error;

/// So many a second for each client: those of one second at once if it has been quiet.
#[derive(Debug)]
pub(super) struct Allowance {
    /// What one certificate takes of the second.
    cost: u64,
    start: Instant,
    /// For each client the time, in nanoseconds since `start`, at which it has paid for all it had.
    paid: Cache<IpAddr, Arc<AtomicU64>>,
}

impl Allowance {
    pub(super) fn new(per_second: u32) -> Self {
        Self {
            cost: SECOND / u64::from(per_second.max(1)),
            start: Instant::now(),
            // Whoever has been quiet for that long has the whole allowance again, and need not be known.
            paid: Cache::builder()
                .max_capacity(CLIENTS)
                .time_to_idle(MAX_WAIT + Duration::from_secs(1))
                .build(),
        }
    }

    /// Takes one, and returns how long it has to be waited for.
    ///
    /// # Errors
    /// [`Error::TooMany`] if that would be longer than [`MAX_WAIT`].
    pub(super) fn take(&self, client: IpAddr, now: Instant) -> Result<Duration, Error> {
        let now = self.nanoseconds(now);
        let paid = self.paid.get_with(household(client), Arc::default);
        let owed = |paid: u64| {
            let next = paid.max(now).saturating_add(self.cost);
            (next, next.saturating_sub(now.saturating_add(SECOND)))
        };
        let pay = |paid: u64| {
            let (next, wait) = owed(paid);
            (Duration::from_nanos(wait) <= MAX_WAIT).then_some(next)
        };
        match paid.fetch_update(Ordering::Relaxed, Ordering::Relaxed, pay) {
            Ok(before) => Ok(Duration::from_nanos(owed(before).1)),
            Err(_) => Err(Error::TooMany),
        }
    }

    fn nanoseconds(&self, now: Instant) -> u64 {
        let now = now.saturating_duration_since(self.start).as_nanos();
        u64::try_from(now).unwrap_or(u64::MAX)
    }
}

/// An IPv6 host has all addresses of a /64.
pub(crate) fn household(client: IpAddr) -> IpAddr {
    match client.to_canonical() {
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64).into(),
        v4 => v4,
    }
}

/// How long a client waits for a certificate at most: less than its own patience with a handshake.
pub(super) const MAX_WAIT: Duration = Duration::from_secs(4);
/// Nanoseconds.
const SECOND: u64 = 1_000_000_000;
/// Clients remembered; more would have to be asking within two seconds for one to be forgotten.
const CLIENTS: u64 = 65_536;
