//! The state that a new process continues, beside sockets and sessions: the level of the log, and maintenance.

use peername_observe::admin::LogLevel;
use peername_observe::admin::history::History;

use super::message::Inheritance;
use super::predecessor::Predecessor;
use crate::logging::LevelHandle;

/// The state of the previous process, if there is one.
#[derive(Debug)]
pub struct PreviousState(Option<Inheritance>);

impl PreviousState {
    /// Copies the state before the listeners consume `previous`.
    pub fn from_predecessor(previous: Option<&Predecessor>) -> Self {
        Self(previous.map(|previous| previous.inheritance.clone()))
    }

    /// Whether there was a previous process.
    pub fn is_some(&self) -> bool {
        self.0.is_some()
    }

    /// Returns a history that begins with the upgrade, if there was one, and with the maintenance of the previous process.
    pub fn history(&self) -> History {
        let history = History::default();
        if let Self(Some(inheritance)) = self {
            history.add_upgrade(inheritance.pid);
            if inheritance.in_maintenance {
                history.set_maintenance(true);
                tracing::info!("in maintenance, as before the upgrade: not ready, and serving");
            }
        }
        history
    }

    /// Sets the level of the log, where `/log-level` had changed it in the previous process.
    pub fn set_log_level(&self, handle: &LevelHandle) {
        let Some(level) = self
            .0
            .as_ref()
            .and_then(|inheritance| inheritance.log_level.as_ref()?.parse().ok())
        else {
            return;
        };
        match handle.set(level) {
            Ok(()) => tracing::info!("the level of the log is {level}, as before the upgrade"),
            Err(error) => tracing::warn!("the level of the log: {error}"),
        }
    }
}
