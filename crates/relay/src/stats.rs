//! The live statistics of a relayed connection.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use peername_sys::clock::coarse_monotonic;

use crate::active_method::ActiveMethod;
use crate::gauge;

/// Byte counts of a connection that has ended, or as they are now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Bytes accepted by the upstream socket.
    pub to_upstream: u64,
    /// Bytes accepted by the downstream socket.
    pub to_downstream: u64,
    /// Bytes received here that were not delivered when the connection ended; 0 before.
    pub undelivered: u64,
}

/// The live statistics of one connection. Any thread may read them. Only the connection's own thread writes, with relaxed
/// stores: atomic types, but no atomic read-modify-write.
#[derive(Debug, Default)]
pub struct RelayStats {
    to_upstream: AtomicU64,
    to_downstream: AtomicU64,
    undelivered: AtomicU64,
    /// The coarse monotonic clock in milliseconds when a byte was last moved; 0 before the first.
    last_activity: AtomicU64,
    /// The number of the [`ActiveMethod`] plus one; 0 while nothing is relayed.
    method: AtomicU8,
    is_half_closed: AtomicBool,
}

impl RelayStats {
    /// The byte counts.
    pub fn tally(&self) -> Tally {
        Tally {
            to_upstream: self.to_upstream.load(Relaxed),
            to_downstream: self.to_downstream.load(Relaxed),
            undelivered: self.undelivered.load(Relaxed),
        }
    }

    /// How long no byte has been moved; `None` before the first byte.
    pub fn idle(&self) -> Option<Duration> {
        let last = self.last_activity.load(Relaxed);
        (last > 0).then(|| coarse_monotonic().saturating_sub(Duration::from_millis(last)))
    }

    /// The method that moves the bytes now; `None` before the relay begins and after it has ended.
    pub fn method(&self) -> Option<ActiveMethod> {
        let index = usize::from(self.method.load(Relaxed)).checked_sub(1)?;
        ActiveMethod::ALL.get(index).copied()
    }

    /// Whether one side has sent FIN.
    pub fn is_half_closed(&self) -> bool {
        self.is_half_closed.load(Relaxed)
    }

    pub(crate) fn set_method(&self, method: ActiveMethod) {
        let old = self.method();
        if old != Some(method) {
            self.method.store(method as u8 + 1, Relaxed);
            gauge::change(old, Some(method));
        }
    }

    /// Clears the method, when the relay has ended.
    pub(crate) fn clear_method(&self) {
        gauge::change(self.method(), None);
        self.method.store(0, Relaxed);
    }

    pub(crate) fn set_half_closed(&self) {
        self.is_half_closed.store(true, Relaxed);
    }

    pub(crate) fn set_undelivered(&self, bytes: u64) {
        self.undelivered.store(bytes, Relaxed);
    }

    /// Stores the byte counts and the time, after bytes were moved.
    pub(crate) fn record_moved(&self, to_upstream: u64, to_downstream: u64) {
        self.to_upstream.store(to_upstream, Relaxed);
        self.to_downstream.store(to_downstream, Relaxed);
        self.last_activity.store(coarse_millis(), Relaxed);
    }
}

/// The coarse monotonic clock in milliseconds: a few nanoseconds to read, where the exact one takes tens.
fn coarse_millis() -> u64 {
    u64::try_from(coarse_monotonic().as_millis()).unwrap_or(u64::MAX)
}
