//! The level of the log, which the admin endpoint may change while the command runs.

use std::sync::{Arc, Mutex, PoisonError};

use peername_observe::admin::LogLevel;
use tracing::Level;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::Registry;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::reload::{self, Handle};

/// Changes the level of the log.
#[derive(Clone, Debug)]
pub struct LevelHandle {
    filter: Handle<Targets, Registry>,
    level: Arc<Mutex<Level>>,
    /// The target whose lines are written elsewhere.
    excluded: Option<&'static str>,
}

/// Makes the filter of the log, and the handle that changes its level. Lines of the target `excluded` do not pass.
pub(super) fn filter(
    level: Level,
    excluded: Option<&'static str>,
) -> (reload::Layer<Targets, Registry>, LevelHandle) {
    let (layer, filter) = reload::Layer::new(targets(level, excluded));
    let handle = LevelHandle {
        filter,
        level: Arc::new(Mutex::new(level)),
        excluded,
    };
    (layer, handle)
}

/// Applies the level to this program's crates. Of others, only warnings and errors are logged.
fn targets(level: Level, excluded: Option<&'static str>) -> Targets {
    Targets::new()
        .with_default(level.min(Level::WARN))
        .with_target("peername", level)
        .with_targets(excluded.map(|target| (target, LevelFilter::OFF)))
}

impl LogLevel for LevelHandle {
    fn get(&self) -> Level {
        *self.level.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, new: Level) -> Result<(), String> {
        let mut level = self.level.lock().unwrap_or_else(PoisonError::into_inner);
        self.filter
            .reload(targets(new, self.excluded))
            .map_err(|error| error.to_string())?;
        *level = new;
        Ok(())
    }
}
