//! Places among the open connections, as many as descriptors allow, and the line of workers that wait for one.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};

use crate::throttle::Throttle;

/// A worker's way to places.
pub(crate) struct Slots {
    of_all: Arc<Semaphore>,
    /// Stands in the line.
    waits: Option<BoxFuture<'static, Result<Slot, AcquireError>>>,
}

/// A place, until it is dropped.
pub(crate) type Slot = OwnedSemaphorePermit;

impl Slots {
    pub(crate) fn new(of_all: Arc<Semaphore>) -> Self {
        Self {
            of_all,
            waits: None,
        }
    }

    /// How many nobody has.
    pub(crate) fn free(&self) -> usize {
        self.of_all.available_permits()
    }

    /// A place that nobody has or waits for.
    pub(crate) fn take(&self) -> Option<Slot> {
        Arc::clone(&self.of_all).try_acquire_owned().ok()
    }

    /// Waits for a place, in the order in which workers come. Dropping the future keeps the place in the line for the
    /// next call, which has to follow: each connection that another worker hands over would send this one to the end
    /// otherwise, behind the one that hands them over.
    pub(crate) async fn wait(&mut self) -> io::Result<Slot> {
        if self.waits.is_none() {
            if let Some(slot) = self.take() {
                return Ok(slot);
            }
            if let Some(suppressed) = FULL.pass() {
                tracing::warn!(
                    suppressed,
                    "as many connections are open as descriptors allow; others wait. Raise LimitNOFILE or \
                     `ulimit -n` if this is the normal load"
                );
            }
        }
        let begin = || Arc::clone(&self.of_all).acquire_owned().boxed();
        let slot = self.waits.get_or_insert_with(begin).await;
        self.waits = None;
        // It fails only when the semaphore is closed, which this one never is.
        slot.map_err(io::Error::other)
    }
}

static FULL: Throttle = Throttle::new(Duration::from_secs(10));

#[cfg(test)]
mod tests {
    use super::*;

    fn workers(places: usize) -> [Slots; 2] {
        let of_all = Arc::new(Semaphore::new(places));
        [Slots::new(Arc::clone(&of_all)), Slots::new(of_all)]
    }

    #[test]
    fn who_stops_waiting_keeps_its_place_in_the_line() {
        let [mut first, mut second] = workers(1);
        let last = second.take().expect("the only one");
        assert!(first.wait().now_or_never().is_none());
        assert!(second.wait().now_or_never().is_none());
        assert!(first.wait().now_or_never().is_none());
        drop(last);
        assert!(second.wait().now_or_never().is_none(), "it is not its turn");
        let slot = first.wait().now_or_never().expect("its turn");
        drop(slot);
        assert!(second.wait().now_or_never().is_some());
    }

    #[test]
    fn who_goes_leaves_the_line() {
        let [mut first, mut second] = workers(1);
        let last = second.take().expect("the only one");
        assert!(first.wait().now_or_never().is_none());
        drop(last);
        assert_eq!(first.free(), 0, "it is the first's");
        drop(first);
        assert!(second.wait().now_or_never().is_some());
    }
}
