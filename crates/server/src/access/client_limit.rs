//! The connection limit of each client.
//!
//! A dynamic threshold, as for shared buffers (Choudhury and Hahne, 1998): a client may have up to twice as many connections
//! as are free. Alone it gets two thirds of all; n clients that take all they can leave one in 1 + 2n free, so that the next
//! client gets a connection.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};

use parking_lot::Mutex;

/// Limits the connections of each client to a share of all.
#[derive(Debug)]
pub struct ClientLimit {
    capacity: usize,
    counts: Mutex<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    total: usize,
    by_client: HashMap<IpAddr, usize>,
}

/// The permit of one connection, until it is dropped.
#[derive(Debug)]
pub struct ClientPermit<'s> {
    limit: &'s ClientLimit,
    client: IpAddr,
}

impl ClientLimit {
    /// A limit for `capacity` connections in all.
    pub fn new(capacity: usize) -> Self {
        Self {
            capacity,
            counts: Mutex::default(),
        }
    }

    /// Acquires a permit for a connection of this client, an IPv4 address or an IPv6 /64; `None` if it has its share already.
    pub fn try_acquire(&self, client: IpAddr) -> Option<ClientPermit<'_>> {
        let client = client_prefix(client);
        let mut counts = self.counts.lock();
        let free = self.capacity.saturating_sub(counts.total);
        let of_client = counts.by_client.get(&client).copied().unwrap_or_default();
        // A client without a connection always gets one.
        if of_client > 0 && of_client >= 2 * free {
            return None;
        }
        counts.total += 1;
        counts.by_client.insert(client, of_client + 1);
        Some(ClientPermit {
            limit: self,
            client,
        })
    }
}

impl Drop for ClientPermit<'_> {
    fn drop(&mut self) {
        let mut counts = self.limit.counts.lock();
        counts.total -= 1;
        if let Some(of_client) = counts.by_client.get_mut(&self.client) {
            *of_client -= 1;
            if *of_client == 0 {
                counts.by_client.remove(&self.client);
            }
        }
    }
}

/// The prefix by which per-client limits tell clients apart: an IPv4 address, or an IPv6 /64, of which one host
/// has all addresses.
#[must_use]
pub fn client_prefix(client: IpAddr) -> IpAddr {
    match client.to_canonical() {
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64).into(),
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_takes_all_it_can_leaves_connections_for_others() {
        let limit = ClientLimit::new(600);
        let mut permits = Vec::new();
        let mut fill = |last: u8| {
            let client = IpAddr::from([192, 0, 2, last]);
            let before = permits.len();
            permits.extend(std::iter::from_fn(|| limit.try_acquire(client)));
            permits.len() - before
        };
        assert_eq!(fill(1), 400);
        assert_eq!(fill(2), 134);
        assert!((3..=9).all(|last| fill(last) > 0));
        assert_eq!(fill(1), 0);
        drop(permits);
        assert_eq!(limit.counts.lock().total, 0);
        assert!(limit.counts.lock().by_client.is_empty());
    }
}
