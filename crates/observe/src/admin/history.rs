//! The history of the process: its reloads and upgrades, lists of clients that can't be read, and maintenance. It is shown by
//! `/status`, the page and the metrics, and part of it is handed to the next process.

use std::sync::Arc;
use std::time::SystemTime;

use parking_lot::{Mutex, MutexGuard};
use serde::{Deserialize, Serialize};

/// The reloads and upgrades of a process, its failed reads of lists of clients, and its maintenance. Clones share it.
#[derive(Clone, Debug)]
pub struct History {
    state: Arc<Mutex<State>>,
    /// Whether another process has taken over. Locked during a change over the admin endpoint.
    is_replaced: Arc<Mutex<bool>>,
}

#[derive(Clone, Debug)]
pub(super) struct State {
    pub(super) reloads: ReloadCounts,
    /// `None` before the first one.
    pub(super) last_reload: Option<Attempt>,
    /// When the configuration in force was read.
    pub(super) applied_at: SystemTime,
    pub(super) upgrades_refused: u64,
    /// The one by which this process began, or a later one that was refused.
    pub(super) last_upgrade: Option<Attempt>,
    /// The last read of the lists of clients, if it failed.
    pub(super) stale_lists: Option<Attempt>,
    /// Set by `PUT /readyz`: the process is not ready, and serves.
    pub(super) in_maintenance: bool,
}

/// The number of reloads, by result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReloadCounts {
    /// Reloads that took effect.
    pub applied: u64,
    /// Reloads that were refused because of an error, and changed nothing.
    pub refused: u64,
}

/// A reload, an upgrade, or the read of a list of clients.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Attempt {
    /// In seconds since 1970.
    pub at: u64,
    /// Why it was refused; `None` if it took effect.
    pub refused: Option<String>,
    /// Of an upgrade that took effect: the process that this one has replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaced_pid: Option<u32>,
}

impl Default for History {
    fn default() -> Self {
        let state = State {
            reloads: ReloadCounts::default(),
            last_reload: None,
            applied_at: SystemTime::now(),
            upgrades_refused: 0,
            last_upgrade: None,
            stale_lists: None,
            in_maintenance: false,
        };
        Self {
            state: Arc::new(Mutex::new(state)),
            is_replaced: Arc::default(),
        }
    }
}

impl History {
    /// Adds a reload; an error is the reason why it was refused.
    pub fn add_reload(&self, result: Result<(), String>) {
        let mut state = self.state.lock();
        match &result {
            Ok(()) => {
                state.reloads.applied += 1;
                state.applied_at = SystemTime::now();
            }
            Err(_) => state.reloads.refused += 1,
        }
        state.last_reload = Some(Attempt::now(result.err()));
    }

    /// Adds the upgrade by which this process has replaced another one.
    pub fn add_upgrade(&self, replaced_pid: u32) {
        self.state.lock().last_upgrade = Some(Attempt {
            replaced_pid: Some(replaced_pid),
            ..Attempt::now(None)
        });
    }

    /// Adds an upgrade that was refused, and why.
    pub fn add_refused_upgrade(&self, reason: String) {
        let mut state = self.state.lock();
        state.upgrades_refused += 1;
        state.last_upgrade = Some(Attempt::now(Some(reason)));
    }

    /// Sets the result of the last read of the lists of clients; an error is the reason why some stay as they were before.
    pub fn set_lists_read(&self, result: Result<(), String>) {
        self.state.lock().stale_lists = result.err().map(|reason| Attempt::now(Some(reason)));
    }

    /// Permits a change over the admin endpoint: until the guard is dropped, no other process takes over. `None` once one has,
    /// which would not learn of it.
    pub(super) fn permit_change(&self) -> Option<MutexGuard<'_, bool>> {
        let is_replaced = self.is_replaced.lock();
        (!*is_replaced).then_some(is_replaced)
    }

    /// Refuses changes over the admin endpoint from now on: another process takes over what they have set.
    pub fn end_changes(&self) {
        *self.is_replaced.lock() = true;
    }

    /// Begins or ends maintenance; returns whether the process was in maintenance before.
    pub fn set_maintenance(&self, in_maintenance: bool) -> bool {
        std::mem::replace(&mut self.state.lock().in_maintenance, in_maintenance)
    }

    /// Whether the process is in maintenance: not ready, and serving.
    pub fn is_in_maintenance(&self) -> bool {
        self.state().in_maintenance
    }

    /// The reloads since the start.
    pub fn reloads(&self) -> ReloadCounts {
        self.state().reloads
    }

    pub(super) fn state(&self) -> State {
        self.state.lock().clone()
    }
}

impl Attempt {
    fn now(refused: Option<String>) -> Self {
        Self {
            at: unix_seconds(SystemTime::now()),
            refused,
            replaced_pid: None,
        }
    }
}

/// The whole seconds since 1970, as the times of this endpoint are given.
pub fn unix_seconds(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The new process would not learn of a change.
    #[test]
    fn changes_are_refused_once_another_process_takes_over() {
        let history = History::default();
        assert!(history.permit_change().is_some());
        history.end_changes();
        assert!(history.permit_change().is_none());
    }
}
