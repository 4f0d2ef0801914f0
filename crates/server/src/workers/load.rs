//! The load of a worker, which its own thread stores and other threads read.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The load of one worker. Only its own thread writes, by plain stores.
#[derive(Debug, Default)]
pub struct WorkerLoad {
    connections: AtomicU64,
    handed_off: AtomicU64,
}

impl WorkerLoad {
    /// Connections that the worker serves now.
    pub fn connections(&self) -> u64 {
        self.connections.load(Relaxed)
    }

    /// Connections that the worker has accepted and handed off to other workers.
    pub fn handed_off(&self) -> u64 {
        self.handed_off.load(Relaxed)
    }

    pub(super) fn set_connections(&self, connections: usize) {
        self.connections.store(connections as u64, Relaxed);
    }

    pub(super) fn count_handoff(&self) {
        self.handed_off.store(self.handed_off() + 1, Relaxed);
    }
}
