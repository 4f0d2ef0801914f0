//! The limit on connections that have not sent their header yet, in all and per peer.

use std::net::IpAddr;

use crate::access::address_counts::{CountGuard, SharedCounts};
use crate::access::max_connections::MaxConnections;
use crate::header_limits::HeaderLimits;

/// Counts the connections that wait for their header. Shared by the workers; nothing is locked while anything waits.
#[derive(Debug)]
pub struct PendingHeaders {
    /// The connections of which the limits are a share where none are configured.
    connections: MaxConnections,
    counts: SharedCounts,
}

impl PendingHeaders {
    /// Creates the limits of a process of at most `connections`. Where none are configured, half of the connections may be
    /// without a header, and a quarter from one peer, so that it can't keep others out.
    pub fn new(connections: MaxConnections) -> Self {
        Self {
            connections,
            counts: SharedCounts::default(),
        }
    }

    /// Counts a connection of `peer` as pending until the guard is dropped; `None` when that peer, or all peers together, have
    /// reached their limit.
    pub(crate) fn enter(&self, peer: IpAddr, limits: &HeaderLimits) -> Option<CountGuard> {
        let connections = self.connections.get();
        let default_max = (connections / 2).clamp(1, MAX_PENDING);
        let default_max_per_peer = (connections / 4).clamp(1, MAX_PENDING_PER_PEER);
        let max = limits.pending.unwrap_or(default_max);
        let max_per_peer = limits.pending_per_peer.unwrap_or(default_max_per_peer);
        self.counts
            .count_if(peer, |total, of_peer| total < max && of_peer < max_per_peer)
    }
}

/// A header usually comes with its connection; a process with more silent connections than this is under attack.
const MAX_PENDING: usize = 8192;
const MAX_PENDING_PER_PEER: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_peer_and_all_peers_have_a_limit_that_dropped_guards_restore() {
        let limits = HeaderLimits {
            pending: Some(3),
            pending_per_peer: Some(2),
            ..HeaderLimits::default()
        };
        let pending = PendingHeaders::new(MaxConnections::new(1000));
        let enter = |last| pending.enter(IpAddr::from([192, 0, 2, last]), &limits);
        let (first, _second) = (enter(1).unwrap(), enter(1).unwrap());
        assert!(enter(1).is_none(), "two of one peer");
        let _third = enter(2).unwrap();
        assert!(enter(3).is_none(), "three in all");
        drop(first);
        assert!(enter(1).is_some());
        assert_eq!(pending.counts.0.lock().by_address.len(), 2);
    }

    #[test]
    fn limits_that_are_not_configured_are_a_share_of_all_connections() {
        let limits = HeaderLimits::default();
        for (connections, max_per_peer, max) in [(1, 1, 1), (434, 108, 217), (100_000, 1024, 8192)]
        {
            let pending = PendingHeaders::new(MaxConnections::new(connections));
            let fill = |last| {
                let peer = IpAddr::from([192, 0, 2, last]);
                std::iter::from_fn(|| pending.enter(peer, &limits)).collect::<Vec<_>>()
            };
            let guards: Vec<_> = (0..10).map(fill).collect();
            assert_eq!(guards[0].len(), max_per_peer, "{connections}");
            assert_eq!(guards.iter().map(Vec::len).sum::<usize>(), max);
        }
    }

    #[test]
    fn limits_that_are_not_configured_follow_the_limit_of_connections() {
        let connections = MaxConnections::new(400);
        let pending = PendingHeaders::new(connections.clone());
        let (peer, limits) = (IpAddr::from([192, 0, 2, 1]), HeaderLimits::default());
        let _guards: Vec<_> = (0..50).map(|_| pending.enter(peer, &limits)).collect();
        assert!(pending.enter(peer, &limits).is_some());
        connections.lower_by(200);
        assert!(pending.enter(peer, &limits).is_none());
    }
}
