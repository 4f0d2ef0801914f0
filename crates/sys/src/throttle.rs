//! Throttled log lines: a line that each connection could cause is written once per interval.

use std::sync::Mutex;
use std::time::{Duration, Instant};

/// The interval of lines that repeat: rare enough that peers can't fill a disk. docs/logs.md names it.
pub const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Lets one line through per interval and counts the suppressed ones.
#[derive(Debug)]
pub struct Throttle {
    interval: Duration,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// When the last line passed.
    last: Option<Instant>,
    suppressed: u64,
}

impl Throttle {
    /// Lets one line through per [`LOG_INTERVAL`].
    pub const fn new() -> Self {
        Self::every(LOG_INTERVAL)
    }

    /// Lets one line through per `interval`.
    pub const fn every(interval: Duration) -> Self {
        Self {
            interval,
            state: Mutex::new(State {
                last: None,
                suppressed: 0,
            }),
        }
    }

    /// Returns how many lines were suppressed since the last one, if a line may be logged now; else counts this one as
    /// suppressed and returns `None`.
    pub fn pass(&self) -> Option<u64> {
        let now = Instant::now();
        let mut state = self.state.lock().ok()?;
        if state
            .last
            .is_some_and(|last| now.duration_since(last) < self.interval)
        {
            state.suppressed += 1;
            return None;
        }
        state.last = Some(now);
        Some(std::mem::take(&mut state.suppressed))
    }
}

impl Default for Throttle {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_line_passes_and_later_ones_are_counted() {
        let throttle = Throttle::every(Duration::from_secs(3600));
        assert_eq!(throttle.pass(), Some(0));
        assert_eq!((throttle.pass(), throttle.pass()), (None, None));
        let often = Throttle::every(Duration::ZERO);
        assert_eq!((often.pass(), often.pass()), (Some(0), Some(0)));
    }
}
