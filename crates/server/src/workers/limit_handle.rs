//! The limit on open connections: how many permits there are, and how many are withheld for other uses of descriptors.

use std::sync::Arc;

use parking_lot::Mutex;
use peername_observe::admin::process_metrics::LimitGauge;
use tokio::sync::Semaphore;

use crate::access::max_connections::MaxConnections;

/// The limit on open connections, of all workers together. Clones share it.
#[derive(Clone, Debug)]
pub struct LimitHandle {
    pub(super) permits: Arc<Semaphore>,
    /// All permits, including those that connections hold.
    max: MaxConnections,
    reserved: Arc<Mutex<Reserved>>,
}

/// What is reserved for uses other than connections.
#[derive(Debug, Default)]
struct Reserved {
    /// Descriptors reserved since the start; negative where more were released.
    descriptors: isize,
    /// Permits withheld for the reserved descriptors.
    permits: isize,
}

impl LimitHandle {
    pub(super) fn new(max: MaxConnections) -> Self {
        Self {
            permits: Arc::new(Semaphore::new(max.get())),
            max,
            reserved: Arc::default(),
        }
    }

    /// Takes descriptors from those that are left for connections, which need two each.
    pub fn reserve_descriptors(&self, descriptors: usize) {
        let mut reserved = self.reserved.lock();
        reserved.descriptors = reserved.descriptors.saturating_add_unsigned(descriptors);
        self.adjust_permits(&mut reserved);
    }

    /// Returns descriptors that were reserved, or open before the start.
    pub fn release_descriptors(&self, descriptors: usize) {
        let mut reserved = self.reserved.lock();
        reserved.descriptors = reserved.descriptors.saturating_sub_unsigned(descriptors);
        self.adjust_permits(&mut reserved);
    }

    /// Adjusts the permits to the sum of reserved descriptors: rounding each reservation by itself would lose a permit
    /// per reload. Permits that connections hold now are withheld at the next call.
    fn adjust_permits(&self, reserved: &mut Reserved) {
        let wanted = reserved.descriptors.saturating_add(1).div_euclid(2);
        let change = wanted.saturating_sub(reserved.permits);
        let permits = change.unsigned_abs();
        if change > 0 {
            let taken = self.permits.forget_permits(permits);
            self.max.lower_by(taken);
            reserved.permits = reserved.permits.saturating_add_unsigned(taken);
        } else {
            self.permits.add_permits(permits);
            self.max.raise_by(permits);
            reserved.permits = wanted;
        }
    }
}

impl LimitGauge for LimitHandle {
    fn limit(&self) -> u64 {
        self.max.get() as u64
    }

    fn is_reached(&self) -> bool {
        self.permits.available_permits() == 0
    }
}
