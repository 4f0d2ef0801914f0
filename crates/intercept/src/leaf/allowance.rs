//! How many new certificates a client may cause.
//!
//! A client that asks for a new name with every connection pays a handshake for each; we pay that, a
//! signature, and the place of a certificate that is in use.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use moka::sync::Cache;

use super::Error;

/// So many a second for each client, all at once if it has been quiet.
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
            // Whoever has been quiet for a second has the whole allowance again, and need not be known.
            paid: Cache::builder()
                .max_capacity(CLIENTS)
                .time_to_idle(Duration::from_secs(2))
                .build(),
        }
    }

    /// Takes one.
    ///
    /// # Errors
    /// [`Error::TooMany`] if the client has none left.
    pub(super) fn take(&self, client: IpAddr, now: Instant) -> Result<(), Error> {
        let now = now.saturating_duration_since(self.start).as_nanos();
        let now = u64::try_from(now).unwrap_or(u64::MAX);
        let paid = self.paid.get_with(household(client), Arc::default);
        let pay = |paid: u64| {
            let next = paid.max(now).saturating_add(self.cost);
            (next <= now.saturating_add(SECOND)).then_some(next)
        };
        match paid.fetch_update(Ordering::Relaxed, Ordering::Relaxed, pay) {
            Ok(_) => Ok(()),
            Err(_) => Err(Error::TooMany),
        }
    }
}

/// An IPv6 host has all addresses of a /64.
fn household(client: IpAddr) -> IpAddr {
    match client.to_canonical() {
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64).into(),
        v4 => v4,
    }
}

/// Nanoseconds.
const SECOND: u64 = 1_000_000_000;
/// Clients remembered; more would have to be asking within two seconds for one to be forgotten.
const CLIENTS: u64 = 65_536;
