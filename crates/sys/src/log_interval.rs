//! How often a line of the log repeats.

use std::time::Duration;

/// The interval of lines that repeat: rare enough that peers can't fill a disk. docs/logs.md names it.
pub const LOG_INTERVAL: Duration = Duration::from_secs(10);
