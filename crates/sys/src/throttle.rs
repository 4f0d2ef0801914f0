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

/// Lets a text through at once if it differs from the last one, and else once per [`LOG_INTERVAL`]. For the error of an attempt
/// that is repeated.
#[derive(Debug, Default)]
pub struct RepeatThrottle {
    last: Option<String>,
    throttle: Throttle,
}

impl RepeatThrottle {
    /// Whether this text differs from the last one.
    pub fn is_new(&self, text: &str) -> bool {
        self.last.as_deref() != Some(text)
    }

    /// Whether this text is to be logged.
    pub fn passes(&mut self, text: &str) -> bool {
        let is_due = self.throttle.pass().is_some();
        if !self.is_new(text) {
            return is_due;
        }
        self.last = Some(text.to_owned());
        true
    }

    /// Lets the next text through at once: an attempt has succeeded.
    pub fn clear(&mut self) {
        self.last = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_line_passes_and_later_ones_are_suppressed_and_counted() {
        let throttle = Throttle::every(Duration::from_secs(3600));
        assert_eq!(throttle.pass(), Some(0));
        assert_eq!((throttle.pass(), throttle.pass()), (None, None));
        // As if the interval were over.
        throttle.state.lock().unwrap().last = None;
        assert_eq!((throttle.pass(), throttle.pass()), (Some(2), None));
        let often = Throttle::every(Duration::ZERO);
        assert_eq!((often.pass(), often.pass()), (Some(0), Some(0)));
    }

    #[test]
    fn text_that_repeats_passes_once_until_it_is_another() {
        let mut throttle = RepeatThrottle::default();
        let texts = ["one", "one", "two", "two", "one"];
        let passed = texts.map(|text| throttle.passes(text));
        assert_eq!(passed, [true, false, true, false, true]);
        throttle.clear();
        assert!(throttle.passes("one"));
    }
}
