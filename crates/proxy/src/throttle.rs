//! Warnings that could come once a connection, said once in a while.

use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Lets one through per interval and counts the others.
#[derive(Debug)]
pub struct Throttle {
    interval: Duration,
    state: Mutex<(Option<Instant>, u64)>,
}

impl Throttle {
    /// One per `interval`.
    pub const fn new(interval: Duration) -> Self {
        Self {
            interval,
            state: Mutex::new((None, 0)),
        }
    }

    /// `Some(n)` when it may be said now, `n` being how often it was not said since the last time.
    pub fn pass(&self) -> Option<u64> {
        let now = Instant::now();
        let mut state = self.state.lock().ok()?;
        let (last, suppressed) = &mut *state;
        if last.is_some_and(|last| now.duration_since(last) < self.interval) {
            *suppressed += 1;
            return None;
        }
        *last = Some(now);
        Some(std::mem::take(suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_passes_and_the_others_are_counted() {
        let throttle = Throttle::new(Duration::from_secs(3600));
        assert_eq!(throttle.pass(), Some(0));
        assert_eq!((throttle.pass(), throttle.pass()), (None, None));
        let often = Throttle::new(Duration::ZERO);
        assert_eq!((often.pass(), often.pass()), (Some(0), Some(0)));
    }
}
