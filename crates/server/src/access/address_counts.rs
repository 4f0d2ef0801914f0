//! Counts per address, such as connections per client.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;

/// A count for each address, and their sum. An address takes memory only while its count is above 0.
#[derive(Debug, Default)]
pub(crate) struct AddressCounts {
    pub(crate) total: usize,
    pub(crate) by_address: HashMap<IpAddr, usize>,
}

/// The counts, which their guards share: one short lock when a guard is made and one when it is dropped.
#[derive(Debug, Default)]
pub(crate) struct SharedCounts(pub(crate) Arc<Mutex<AddressCounts>>);

/// Counts one connection of an address until it is dropped.
#[derive(Debug)]
pub struct CountGuard {
    counts: Arc<Mutex<AddressCounts>>,
    address: IpAddr,
}

impl SharedCounts {
    /// Counts a connection of this address, unless `has_room` refuses it by the sum and by the count of the address.
    pub(crate) fn count_if(
        &self,
        address: IpAddr,
        has_room: impl FnOnce(usize, usize) -> bool,
    ) -> Option<CountGuard> {
        let mut counts = self.0.lock();
        let of_address = counts.by_address.get(&address).copied();
        if !has_room(counts.total, of_address.unwrap_or_default()) {
            return None;
        }
        *counts.by_address.entry(address).or_default() += 1;
        counts.total += 1;
        Some(CountGuard {
            counts: Arc::clone(&self.0),
            address,
        })
    }
}

impl Drop for CountGuard {
    fn drop(&mut self) {
        let mut counts = self.counts.lock();
        if let Some(count) = counts.by_address.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                counts.by_address.remove(&self.address);
            }
            counts.total -= 1;
        }
    }
}
