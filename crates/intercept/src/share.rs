//! How many connections a client may have.
//!
//! By the dynamic thresholds of shared buffers (Choudhury and Hahne, 1998): a client may have up to twice as many as are
//! free. Alone it gets two thirds of all; n of them that take what they can leave one in 1 + 2n free, in which whoever
//! comes next finds a place.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::request::client_info::client_prefix;

/// The places of clients' connections.
#[derive(Debug)]
pub(crate) struct Shares {
    capacity: usize,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    total: usize,
    by_client: HashMap<IpAddr, usize>,
}

/// A place, until it is dropped.
#[derive(Debug)]
pub(crate) struct Place<'s> {
    shares: &'s Shares,
    client: IpAddr,
}

impl Shares {
    /// Of so many connections.
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            capacity,
            open: Mutex::default(),
        }
    }

    /// A place for a connection of this client, an IPv4 address or an IPv6 /64; `None` if it has more than its share.
    pub(crate) fn enter(&self, client: IpAddr) -> Option<Place<'_>> {
        let client = client_prefix(client);
        let mut open = self.lock();
        let free = self.capacity.saturating_sub(open.total);
        let of_client = open.by_client.get(&client).copied().unwrap_or_default();
        // The last free ones may be kept by nobody: who has none gets one.
        if of_client > 0 && of_client >= 2 * free {
            return None;
        }
        open.total += 1;
        open.by_client.insert(client, of_client + 1);
        Some(Place {
            shares: self,
            client,
        })
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut open = self.shares.lock();
        open.total -= 1;
        if let Some(of_client) = open.by_client.get_mut(&self.client) {
            *of_client -= 1;
            if *of_client == 0 {
                open.by_client.remove(&self.client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_takes_all_it_can_leaves_places() {
        let shares = Shares::new(600);
        let mut places = Vec::new();
        let mut fill = |last: u8| {
            let client = IpAddr::from([192, 0, 2, last]);
            let before = places.len();
            places.extend(std::iter::from_fn(|| shares.enter(client)));
            places.len() - before
        };
        assert_eq!(fill(1), 400);
        assert_eq!(fill(2), 134);
        assert!((3..=9).all(|last| fill(last) > 0));
        assert_eq!(fill(1), 0);
        drop(places);
        assert_eq!(shares.lock().total, 0);
        assert!(shares.lock().by_client.is_empty());
    }
}
