//! What a new process continues of the one that it replaces, beside sockets and sessions.

use peername_observe::admin::LogLevel;
use peername_observe::admin::history::History;

use super::message::Inheritance;
use super::predecessor::Predecessor;
use crate::logging::LevelHandle;

/// What was received of the previous process; empty where there is none.
#[derive(Debug)]
pub struct PreviousState(Option<Inheritance>);

impl PreviousState {
    /// To be taken before the listeners consume `previous`.
    pub fn from_predecessor(previous: Option<&Predecessor>) -> Self {
        Self(previous.map(|previous| previous.inheritance.clone()))
    }

    /// A history that begins with the upgrade, if there is one, and with the maintenance of the previous process.
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
        let level = self.0.as_ref().and_then(|it| it.log_level.as_ref());
        let Some(level) = level.and_then(|level| level.parse().ok()) else {
            return;
        };
        match handle.set(level) {
            Ok(()) => tracing::info!("the level of the log is {level}, as before the upgrade"),
            Err(error) => tracing::warn!("the level of the log: {error}"),
        }
    }
}
