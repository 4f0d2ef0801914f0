//! The limit on open connections, as the admin endpoint reports it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use peername_observe::admin::process_metrics::LimitGauge;
use tokio::sync::Semaphore;

/// The limit on open connections, of all workers together.
#[derive(Clone, Debug)]
pub struct LimitHandle {
    pub(super) permits: Arc<Semaphore>,
    /// All permits, including those that connections hold.
    pub(super) limit: Arc<AtomicUsize>,
}

impl LimitGauge for LimitHandle {
    fn limit(&self) -> u64 {
        self.limit.load(Relaxed) as u64
    }

    fn is_reached(&self) -> bool {
        self.permits.available_permits() == 0
    }
}
