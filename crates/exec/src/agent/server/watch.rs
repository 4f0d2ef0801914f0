//! Reloads the policies when their files change. The agent starts processes, so it has no thread that could wait for inotify(7).

use std::time::{Duration, Instant};

/// The watch of the policies' files.
#[derive(Debug)]
pub(super) struct PolicyWatch {
    /// When the files are compared next.
    pub(super) due: Instant,
    /// Whether they had changed at the last comparison.
    has_changed: bool,
}

impl PolicyWatch {
    /// Compares the files, if that is due. A change is reported one interval later, when files that belong together are written.
    pub(super) fn is_reload_due(&mut self, now: Instant, are_current: impl Fn() -> bool) -> bool {
        if self.due > now {
            return false;
        }
        self.due = now + INTERVAL;
        let had_changed = self.has_changed;
        self.has_changed = !are_current() && !had_changed;
        had_changed
    }
}

impl Default for PolicyWatch {
    fn default() -> Self {
        Self {
            due: Instant::now(),
            has_changed: false,
        }
    }
}

const INTERVAL: Duration = Duration::from_millis(500);
