//! Exchanges in flight on one connection, and detection of stalls.

use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

/// Counts the exchanges of one client connection, and aborts those that stall.
#[derive(Debug)]
pub(crate) struct StallMonitor {
    state: Mutex<State>,
    /// Notified of each exchange that begins.
    begins: Notify,
}

#[derive(Debug)]
struct State {
    in_flight: usize,
    /// Exchanges begun so far.
    begun: u64,
    /// When the last exchange ended.
    last_end: Instant,
    watched: Vec<Watched>,
}

/// A transfer that is watched for stalls and can be aborted from outside.
pub(crate) trait Progress: std::fmt::Debug + Send + Sync {
    /// Bytes moved so far, in both directions; `None` once the transfer is over.
    fn bytes_moved(&self) -> Option<u64>;

    /// How long the transfer may stall in its present state; `None` for no limit.
    fn stall_limit(&self) -> Option<Duration>;

    /// Aborts the transfer: nothing has moved for too long.
    fn abort(&self);
}

#[derive(Debug)]
struct Watched {
    transfer: Weak<dyn Progress>,
    moved: u64,
    since: Instant,
}

impl Default for StallMonitor {
    fn default() -> Self {
        let state = State {
            in_flight: 0,
            begun: 0,
            last_end: Instant::now(),
            watched: Vec::new(),
        };
        Self {
            state: Mutex::new(state),
            begins: Notify::new(),
        }
    }
}

impl StallMonitor {
    /// Counts an exchange in; [`StallMonitor::end`] has to follow.
    pub(crate) fn begin(&self) {
        let mut state = self.state.lock();
        state.in_flight += 1;
        state.begun += 1;
        drop(state);
        self.begins.notify_waiters();
    }

    pub(crate) fn end(&self) {
        let mut state = self.state.lock();
        state.in_flight -= 1;
        state.last_end = Instant::now();
    }

    /// Aborts `transfer` once it has not moved for its limit.
    pub(crate) fn watch(&self, transfer: Weak<dyn Progress>) {
        let mut state = self.state.lock();
        state
            .watched
            .retain(|watched| watched.transfer.strong_count() > 0);
        state.watched.push(Watched {
            transfer,
            moved: 0,
            since: Instant::now(),
        });
    }

    /// Waits until there has been no exchange for the idle timeout. Meanwhile aborts stalled transfers. `shortest_limit` is the
    /// shortest limit that a transfer may have: it determines how often transfers are checked.
    pub(crate) async fn wait_idle(&self, idle_timeout: Duration, shortest_limit: Duration) {
        loop {
            sleep(shortest_limit / POLLS_PER_TIMEOUT).await;
            let now = Instant::now();
            for stalled in self.take_stalled(now) {
                stalled.abort();
            }
            let state = self.state.lock();
            let idle = now.saturating_duration_since(state.last_end);
            if state.in_flight == 0 && idle >= idle_timeout {
                return;
            }
        }
    }

    /// How many exchanges there have been so far.
    pub(crate) fn total_begun(&self) -> u64 {
        self.state.lock().begun
    }

    /// Waits until more than `begun` exchanges have begun.
    pub(crate) async fn wait_begun_after(&self, begun: u64) {
        loop {
            // Created before the check, so that an exchange which begins after the check wakes it.
            let begins = self.begins.notified();
            if self.total_begun() > begun {
                return;
            }
            begins.await;
        }
    }

    /// Whether no exchange is in flight.
    pub(crate) fn is_idle(&self) -> bool {
        self.idle().is_some()
    }

    /// For how long no exchange has been in flight; `None` while one is.
    pub(crate) fn idle(&self) -> Option<Duration> {
        let state = self.state.lock();
        (state.in_flight == 0).then(|| state.last_end.elapsed())
    }

    fn take_stalled(&self, now: Instant) -> Vec<Arc<dyn Progress>> {
        let mut stalled = Vec::new();
        // Taken out of the lock, because this may drop the last reference to a transfer, which then calls `end`.
        let mut all = std::mem::take(&mut self.state.lock().watched);
        all.retain_mut(|watched| {
            let Some(transfer) = watched.transfer.upgrade() else {
                return false;
            };
            let Some(moved) = transfer.bytes_moved() else {
                return false;
            };
            if moved != watched.moved {
                (watched.moved, watched.since) = (moved, now);
            }
            let stalled_for = now.duration_since(watched.since);
            let is_stalled = transfer
                .stall_limit()
                .is_some_and(|limit| stalled_for >= limit);
            if is_stalled {
                stalled.push(transfer);
            }
            !is_stalled
        });
        self.state.lock().watched.append(&mut all);
        stalled
    }
}

/// A timeout is noticed late by no more than a quarter of it.
pub(super) const POLLS_PER_TIMEOUT: u32 = 4;
