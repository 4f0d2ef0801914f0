//! How many connections to origins there are, of all workers together: each has a descriptor.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::Fault;
use super::idle_pool::Pool;

/// The places there are.
#[derive(Debug)]
pub(super) struct Places {
    most: usize,
    taken: Arc<AtomicUsize>,
    /// The workers' idle connections, which have places that are of more use to others.
    pools: Mutex<Vec<Weak<Pool>>>,
}

/// The place of one connection, until this is dropped.
#[derive(Debug)]
pub(crate) struct Place(Arc<AtomicUsize>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

impl Places {
    pub(super) fn new(most: usize) -> Self {
        Self {
            most,
            taken: Arc::default(),
            pools: Mutex::default(),
        }
    }

    /// Idle connections in there may be closed for others.
    pub(super) fn add(&self, pool: &Arc<Pool>) {
        self.pools().push(Arc::downgrade(pool));
    }

    /// # Errors
    ///
    /// [`Fault::Full`]: all are taken, by connections that are in use.
    pub(super) fn take(&self) -> Result<Place, Fault> {
        let place = Place(Arc::clone(&self.taken));
        let before = self.taken.fetch_add(1, Relaxed);
        // What is closed here leaves in a moment: until then there is one more.
        if before < self.most || self.close_idle() {
            return Ok(place);
        }
        Err(Fault::Full(self.most))
    }

    fn close_idle(&self) -> bool {
        self.pools()
            .iter()
            .any(|pool| pool.upgrade().is_some_and(|pool| pool.close_oldest()))
    }

    fn pools(&self) -> MutexGuard<'_, Vec<Weak<Pool>>> {
        self.pools.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
