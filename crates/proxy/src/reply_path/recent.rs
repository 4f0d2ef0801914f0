//! Destinations on this host that headers have named: the latest of them, however many there are.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use tokio::time::Instant;

use super::state::ProbeState;
use super::target::ProbeKey;

/// Asked once a connection by every worker, so that what is known already is only read.
#[derive(Debug)]
pub(super) struct RecentTargets {
    known: RwLock<HashMap<ProbeKey, Arc<ProbeState>>>,
    since: Instant,
}

impl RecentTargets {
    pub(super) fn new() -> Self {
        Self {
            known: RwLock::default(),
            since: Instant::now(),
        }
    }

    /// One that has been named, if it is remembered. It is then the last to be forgotten.
    pub(super) fn get(&self, probed: &ProbeKey) -> Option<Arc<ProbeState>> {
        let path = Arc::clone(self.known().get(probed)?);
        path.use_at(self.now());
        Some(path)
    }

    /// Remembers a new one, in the place of the one that nobody has named for longest.
    pub(super) fn add(&self, probed: ProbeKey, path: ProbeState) {
        path.use_at(self.now());
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MAX_RECENT {
            let oldest = known.iter().min_by_key(|(_, path)| path.used());
            if let Some(oldest) = oldest.map(|(probed, _)| *probed) {
                known.remove(&oldest);
            }
        }
        known.entry(probed).or_insert_with(|| Arc::new(path));
    }

    pub(super) fn all(&self) -> Vec<Arc<ProbeState>> {
        self.known().values().cloned().collect()
    }

    fn known(&self) -> RwLockReadGuard<'_, HashMap<ProbeKey, Arc<ProbeState>>> {
        self.known.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> u64 {
        u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

impl Clone for RecentTargets {
    fn clone(&self) -> Self {
        Self {
            known: RwLock::new(self.known().clone()),
            since: self.since,
        }
    }
}

/// RecentTargets destinations that are watched, each for a connection over loopback or a look-up a minute. With
/// fewer, a client that names many could make each of them new, and be let through untried.
pub(super) const MAX_RECENT: usize = 256;
