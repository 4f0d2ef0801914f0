//! The level of the log, which the admin endpoint may change while the command runs.

use std::sync::{Mutex, PoisonError};

use peername_observe::admin::LogLevel;
use tracing::Level;
use tracing_subscriber::Registry;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::reload::{self, Handle};

/// Changes the level of the log.
#[derive(Debug)]
pub struct LevelHandle {
    filter: Handle<Targets, Registry>,
    level: Mutex<Level>,
}

/// Makes the filter of the log, and the handle that changes its level.
pub(super) fn filter(level: Level) -> (reload::Layer<Targets, Registry>, LevelHandle) {
    let (layer, filter) = reload::Layer::new(targets(level));
    let level = Mutex::new(level);
    (layer, LevelHandle { filter, level })
}

/// Applies the level to this program's crates. Of others, only warnings and errors are logged.
fn targets(level: Level) -> Targets {
    Targets::new()
        .with_default(level.min(Level::WARN))
        .with_target("peername", level)
}

impl LogLevel for LevelHandle {
    fn get(&self) -> Level {
        *self.level.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, new: Level) -> Result<(), String> {
        let mut level = self.level.lock().unwrap_or_else(PoisonError::into_inner);
        self.filter
            .reload(targets(new))
            .map_err(|error| error.to_string())?;
        *level = new;
        Ok(())
    }
}
