//! How many connections have not shown a header yet, in all and of each peer.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

use crate::config::HeaderLimits;

/// The places of connections without a header. Shared by the loops: one short lock on the way in and
/// one on the way out, never while anything waits.
#[derive(Debug, Default)]
pub(crate) struct Pending(Mutex<Places>);

#[derive(Debug, Default)]
struct Places {
    total: usize,
    by_peer: HashMap<IpAddr, usize>,
}

/// A place, given up when dropped.
#[derive(Debug)]
pub(crate) struct Place<'p> {
    pending: &'p Pending,
    peer: IpAddr,
}

impl Pending {
    /// A place for a connection of `peer`, or `None` when it or all peers together have too many.
    pub(crate) fn enter(&self, peer: IpAddr, limits: &HeaderLimits) -> Option<Place<'_>> {
        let mut places = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if places.total >= limits.pending {
            return None;
        }
        let of_peer = places.by_peer.entry(peer).or_default();
        if *of_peer >= limits.pending_per_peer {
            return None;
        }
        *of_peer += 1;
        places.total += 1;
        Some(Place {
            pending: self,
            peer,
        })
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut places = self
            .pending
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        places.total -= 1;
        if let Some(of_peer) = places.by_peer.get_mut(&self.peer) {
            *of_peer -= 1;
            if *of_peer == 0 {
                places.by_peer.remove(&self.peer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_peer_and_all_together_have_a_limit_and_places_come_back() {
        let limits = HeaderLimits {
            pending: 3,
            pending_per_peer: 2,
            ..HeaderLimits::default()
        };
        let pending = Pending::default();
        let enter = |last| pending.enter(IpAddr::from([192, 0, 2, last]), &limits);
        let (first, _second) = (enter(1).unwrap(), enter(1).unwrap());
        assert!(enter(1).is_none(), "two of one peer");
        let _third = enter(2).unwrap();
        assert!(enter(3).is_none(), "three in all");
        drop(first);
        assert!(enter(1).is_some());
        assert_eq!(pending.0.lock().unwrap().by_peer.len(), 2);
    }
}
