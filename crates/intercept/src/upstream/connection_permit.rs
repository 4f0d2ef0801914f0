//! Permits under the connection cap.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// A permit for one connection. It counts against the cap until it is dropped.
#[derive(Debug)]
pub(crate) struct ConnectionPermit(Arc<AtomicUsize>);

impl ConnectionPermit {
    /// Counts a connection, and returns how many there were before.
    pub(super) fn count(connections: &Arc<AtomicUsize>) -> (Self, usize) {
        let permit = Self(Arc::clone(connections));
        let before = connections.fetch_add(1, Relaxed);
        (permit, before)
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}
