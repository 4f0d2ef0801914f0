//! The limit on open connections of the process.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use tokio::sync::Semaphore;

/// The number of connections that may be open at once. It follows from the descriptors that are left for connections, and
/// changes with the listeners of a reload. Clones share it, so whatever divides the connections between clients follows it.
#[derive(Clone, Debug)]
pub struct MaxConnections(Arc<AtomicUsize>);

impl MaxConnections {
    /// A limit of this many connections.
    pub fn new(connections: usize) -> Self {
        let connections = connections.min(Semaphore::MAX_PERMITS);
        Self(Arc::new(AtomicUsize::new(connections)))
    }

    /// The current limit.
    pub fn get(&self) -> usize {
        self.0.load(Relaxed)
    }

    /// Raises the limit by this number of connections.
    pub(crate) fn raise_by(&self, connections: usize) {
        self.0.fetch_add(connections, Relaxed);
    }

    /// Lowers the limit by this number of connections.
    pub(crate) fn lower_by(&self, connections: usize) {
        self.0.fetch_sub(connections, Relaxed);
    }
}
