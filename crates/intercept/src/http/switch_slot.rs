//! The slot in which a request leaves what its connection becomes.

use std::sync::Arc;

use parking_lot::Mutex;

/// Filled by a request that switches its connection's protocol, emptied once hyper has given the connection back.
#[derive(Debug)]
pub(crate) struct SwitchSlot<T>(Arc<Mutex<Option<T>>>);

impl<T> SwitchSlot<T> {
    pub(crate) fn fill(&self, value: T) {
        *self.0.lock() = Some(value);
    }

    pub(crate) fn take(&self) -> Option<T> {
        self.0.lock().take()
    }
}

impl<T> Clone for SwitchSlot<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Default for SwitchSlot<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}
