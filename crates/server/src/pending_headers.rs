//! The limit on connections that have not sent their header yet, in all and per peer.

use std::collections::HashMap;
use std::net::IpAddr;

use parking_lot::Mutex;

use crate::header_limits::HeaderLimits;

/// Counts the connections that wait for their header. Shared by the workers: one short lock when the wait begins and
/// one when it ends, never while anything waits.
#[derive(Debug, Default)]
pub struct PendingHeaders(Mutex<Counts>);

#[derive(Debug, Default)]
struct Counts {
    total: usize,
    by_peer: HashMap<IpAddr, usize>,
}

/// Counts one connection as pending until it is dropped.
#[derive(Debug)]
pub(crate) struct PendingGuard<'p> {
    pending: &'p PendingHeaders,
    peer: IpAddr,
}

impl PendingHeaders {
    /// Counts a connection of `peer`; `None` when that peer, or all peers together, have reached their limit.
    pub(crate) fn enter(&self, peer: IpAddr, limits: &HeaderLimits) -> Option<PendingGuard<'_>> {
        let mut counts = self.0.lock();
        if counts.total >= limits.pending {
            return None;
        }
        let of_peer = counts.by_peer.entry(peer).or_default();
        if *of_peer >= limits.pending_per_peer {
            return None;
        }
        *of_peer += 1;
        counts.total += 1;
        Some(PendingGuard {
            pending: self,
            peer,
        })
    }
}

impl Drop for PendingGuard<'_> {
    fn drop(&mut self) {
        let mut counts = self.pending.0.lock();
        counts.total -= 1;
        if let Some(of_peer) = counts.by_peer.get_mut(&self.peer) {
            *of_peer -= 1;
            if *of_peer == 0 {
                counts.by_peer.remove(&self.peer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_peer_and_all_peers_have_a_limit_and_dropped_guards_free_it() {
        let limits = HeaderLimits {
            pending: 3,
            pending_per_peer: 2,
            ..HeaderLimits::default()
        };
        let pending = PendingHeaders::default();
        let enter = |last| pending.enter(IpAddr::from([192, 0, 2, last]), &limits);
        let (first, _second) = (enter(1).unwrap(), enter(1).unwrap());
        assert!(enter(1).is_none(), "two of one peer");
        let _third = enter(2).unwrap();
        assert!(enter(3).is_none(), "three in all");
        drop(first);
        assert!(enter(1).is_some());
        assert_eq!(pending.0.lock().by_peer.len(), 2);
    }
}
