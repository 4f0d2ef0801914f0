//! The limit on open connections, which follows from the limit on descriptors, and the queue of workers that wait for a permit.

use std::io;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use peername_sys::throttle::Throttle;
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};

/// One worker's access to the permits of all workers.
pub(crate) struct ConnectionLimit {
    permits: Arc<Semaphore>,
    /// The queued request, across cancelled calls of [`ConnectionLimit::acquire`].
    queued: Option<BoxFuture<'static, Result<ConnectionPermit, AcquireError>>>,
}

/// Allows one open connection until it is dropped.
pub(crate) type ConnectionPermit = OwnedSemaphorePermit;

impl ConnectionLimit {
    pub(crate) fn new(permits: Arc<Semaphore>) -> Self {
        Self {
            permits,
            queued: None,
        }
    }

    /// The number of free permits.
    pub(crate) fn available(&self) -> usize {
        self.permits.available_permits()
    }

    /// Returns a permit if one is free and no worker waits for it.
    pub(crate) fn try_acquire(&self) -> Option<ConnectionPermit> {
        Arc::clone(&self.permits).try_acquire_owned().ok()
    }

    /// Waits for a permit, first come, first served.
    ///
    /// Cancel-safe: the queued request survives; call `acquire` again. Otherwise each connection that another worker hands off
    /// to this one would cancel the request, and the next request would be queued behind that worker's.
    pub(crate) async fn acquire(&mut self) -> io::Result<ConnectionPermit> {
        if self.queued.is_none() {
            if let Some(permit) = self.try_acquire() {
                return Ok(permit);
            }
            if let Some(suppressed) = FULL.pass() {
                tracing::warn!(
                    suppressed,
                    "as many connections are open as descriptors allow; others wait. Raise LimitNOFILE or \
                     `ulimit -n` if this is the normal load"
                );
            }
        }
        let permit = self
            .queued
            .get_or_insert_with(|| Arc::clone(&self.permits).acquire_owned().boxed())
            .await;
        self.queued = None;
        // Only a closed semaphore returns an error, and this one is never closed.
        permit.map_err(io::Error::other)
    }
}

static FULL: Throttle = Throttle::new();

#[cfg(test)]
mod tests {
    use super::*;

    fn two_workers(permits: usize) -> [ConnectionLimit; 2] {
        let permits = Arc::new(Semaphore::new(permits));
        [
            ConnectionLimit::new(Arc::clone(&permits)),
            ConnectionLimit::new(permits),
        ]
    }

    #[test]
    fn cancelled_wait_keeps_its_position_in_the_queue() {
        let [mut first, mut second] = two_workers(1);
        let last = second.try_acquire().expect("the only permit");
        assert!(first.acquire().now_or_never().is_none());
        assert!(second.acquire().now_or_never().is_none());
        assert!(first.acquire().now_or_never().is_none());
        drop(last);
        assert!(
            second.acquire().now_or_never().is_none(),
            "the first is next"
        );
        let permit = first.acquire().now_or_never().expect("the first is next");
        drop(permit);
        assert!(second.acquire().now_or_never().is_some());
    }

    #[test]
    fn dropped_worker_leaves_the_queue() {
        let [mut first, mut second] = two_workers(1);
        let last = second.try_acquire().expect("the only permit");
        assert!(first.acquire().now_or_never().is_none());
        drop(last);
        assert_eq!(first.available(), 0, "the permit is assigned to the first");
        drop(first);
        assert!(second.acquire().now_or_never().is_some());
    }
}
