//! The destinations on this host that headers have named: a bounded LRU table.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::RwLock;
use tokio::time::Instant;

use super::state::ProbeState;
use super::target::ProbeKey;

/// The most recently used destinations. Every connection looks its destination up here; a lookup takes only the read
/// lock, so workers do not block each other.
#[derive(Debug)]
pub(super) struct RecentTargets {
    targets: RwLock<HashMap<ProbeKey, Arc<ProbeState>>>,
    /// Times of last use are counted from here.
    epoch: Instant,
}

impl RecentTargets {
    pub(super) fn new() -> Self {
        Self {
            targets: RwLock::default(),
            epoch: Instant::now(),
        }
    }

    /// Looks a target up and marks it as the most recently used.
    pub(super) fn get(&self, key: &ProbeKey) -> Option<Arc<ProbeState>> {
        let state = Arc::clone(self.targets.read().get(key)?);
        state.touch(self.now_ms());
        Some(state)
    }

    /// Adds a target, unless another worker has. Evicts the least recently used one if the table is full.
    pub(super) fn insert(&self, key: ProbeKey, state: ProbeState) {
        state.touch(self.now_ms());
        let mut targets = self.targets.write();
        if targets.len() >= MAX_RECENT && !targets.contains_key(&key) {
            let oldest = targets.iter().min_by_key(|(_, state)| state.last_used_ms());
            if let Some((&oldest, _)) = oldest {
                targets.remove(&oldest);
            }
        }
        targets.entry(key).or_insert_with(|| Arc::new(state));
    }

    pub(super) fn all(&self) -> Vec<Arc<ProbeState>> {
        self.targets.read().values().cloned().collect()
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.epoch.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

impl Clone for RecentTargets {
    fn clone(&self) -> Self {
        Self {
            targets: RwLock::new(self.targets.read().clone()),
            epoch: self.epoch,
        }
    }
}

/// Limit of remembered destinations; each costs a loopback connection or a route lookup per minute. With a limit that is too
/// low, each of many destinations is evicted before it is named again, so it counts as new and sound each time.
pub(super) const MAX_RECENT: usize = 256;
