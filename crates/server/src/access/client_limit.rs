//! The connection limit of each client.
//!
//! A dynamic threshold, as for shared buffers (Choudhury and Hahne, 1998): a client may have up to twice as many connections
//! as are free. A single client gets two thirds of all; n clients that take all they can leave one in 1 + 2n free, so that the
//! next client gets a connection.

use std::net::{IpAddr, Ipv6Addr};

use super::address_counts::SharedCounts;
use crate::access::max_connections::MaxConnections;

/// The permit of one connection, until it is dropped.
pub use super::address_counts::CountGuard as ClientPermit;

/// Limits the connections of each client to a share of all.
#[derive(Debug)]
pub struct ClientLimit {
    capacity: MaxConnections,
    counts: SharedCounts,
}

impl ClientLimit {
    /// A limit for `capacity` connections in all.
    pub fn new(capacity: MaxConnections) -> Self {
        Self {
            capacity,
            counts: SharedCounts::default(),
        }
    }

    /// Acquires a permit for a connection of this client, an IPv4 address or an IPv6 /64; `None` if the client
    /// has its share already.
    pub fn try_acquire(&self, client: IpAddr) -> Option<ClientPermit> {
        self.counts.count_if(client_prefix(client), |total, held| {
            let free = self.capacity.get().saturating_sub(total);
            // A client without a connection always gets one.
            held == 0 || held < 2 * free
        })
    }
}

/// The prefix by which per-client limits tell clients apart: an IPv4 address, or an IPv6 /64, all of whose
/// addresses a single host may use.
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
    fn client_that_takes_all_it_can_leaves_connections_for_others() {
        let limit = ClientLimit::new(MaxConnections::new(600));
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
        let counts = limit.counts.0.lock();
        assert!(counts.total == 0 && counts.by_address.is_empty());
    }

    #[test]
    fn share_of_a_client_follows_the_limit() {
        let capacity = MaxConnections::new(600);
        let limit = ClientLimit::new(capacity.clone());
        let client = IpAddr::from([192, 0, 2, 1]);
        let permits: Vec<_> = (0..201).filter_map(|_| limit.try_acquire(client)).collect();
        assert_eq!(permits.len(), 201);
        capacity.lower_by(300);
        assert!(limit.try_acquire(client).is_none());
        capacity.raise_by(300);
        assert!(limit.try_acquire(client).is_some());
    }
}
