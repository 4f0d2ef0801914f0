//! The state that a new process continues, beside sockets and sessions: the level of the log, maintenance, and a reload that it
//! has to do.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use peername_observe::admin::LogLevel;
use peername_observe::admin::history::History;

use super::message::Inheritance;
use crate::logging::{LevelHandle, LogArgs};

/// The state of a process that an upgrade hands over. Clones share it.
#[derive(Clone, Debug)]
pub struct ProcessState {
    /// The level of the log.
    pub log_level: LevelHandle,
    /// The reloads and upgrades so far, and maintenance.
    pub history: History,
    /// Whether the configuration has to be read again: SIGHUP has come after it was read, to the previous process.
    pub must_reload: Arc<AtomicBool>,
}

impl ProcessState {
    /// Ends changes over the admin endpoint, and returns the state for the new process. `options` have the level of the log
    /// before it was changed; `must_reload` tells the new process to read its configuration again.
    pub(crate) fn hand_over(&self, options: LogArgs, must_reload: bool) -> Inheritance {
        self.history.end_changes();
        Inheritance {
            must_reload,
            ..self.inheritance(options)
        }
    }

    /// Returns the state for the new process as it is now. `options` are those of [`Self::hand_over`].
    pub(crate) fn inheritance(&self, options: LogArgs) -> Inheritance {
        let changed_level = options.changed_level(&self.log_level);
        Inheritance {
            pid: std::process::id(),
            log_level: changed_level.map(|level| level.as_str().to_owned()),
            in_maintenance: self.history.is_in_maintenance(),
            must_reload: false,
        }
    }

    /// Continues the state of the previous process.
    pub(super) fn restore(&self, previous: &Inheritance) {
        let level = previous.log_level.as_ref();
        if let Some(level) = level.and_then(|level| level.parse().ok()) {
            match self.log_level.set(level) {
                Ok(()) => tracing::info!("the level of the log is {level}, as before the upgrade"),
                Err(error) => tracing::warn!("the level of the log: {error}"),
            }
        }
        self.must_reload.store(previous.must_reload, Relaxed);
        self.history.add_upgrade(previous.pid);
        if previous.in_maintenance {
            self.history.set_maintenance(true);
            tracing::info!("in maintenance, as before the upgrade: not ready, and serving");
        }
    }
}
