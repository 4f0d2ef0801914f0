//! Counts per address, such as connections per client.

use std::collections::HashMap;
use std::net::IpAddr;

/// A count for each address, and their sum. An address takes memory only while its count is above 0.
#[derive(Debug, Default)]
pub(crate) struct AddressCounts {
    pub(crate) total: usize,
    pub(crate) by_address: HashMap<IpAddr, usize>,
}

impl AddressCounts {
    pub(crate) fn get(&self, address: IpAddr) -> usize {
        self.by_address.get(&address).copied().unwrap_or_default()
    }

    pub(crate) fn increment(&mut self, address: IpAddr) {
        *self.by_address.entry(address).or_default() += 1;
        self.total += 1;
    }

    /// Takes back one [`AddressCounts::increment`] of this address.
    pub(crate) fn decrement(&mut self, address: IpAddr) {
        if let Some(count) = self.by_address.get_mut(&address) {
            *count -= 1;
            self.total -= 1;
            if *count == 0 {
                self.by_address.remove(&address);
            }
        }
    }
}
