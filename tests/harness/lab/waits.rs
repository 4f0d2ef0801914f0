//! Waits with a time limit.

use std::time::{Duration, Instant};

/// Polls `question` until it has an answer. Panics with `what` after ten seconds, which no step of these
/// tests takes on a healthy machine, however busy.
pub(crate) fn wait_for<T>(what: &str, question: impl FnMut() -> Option<T>) -> T {
    poll_until(Instant::now() + WAIT_LIMIT, question)
        .unwrap_or_else(|| panic!("waited {WAIT_LIMIT:?} in vain: {what}"))
}

/// Polls `condition` until it holds, for as long as [`wait_for`].
pub(crate) fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    wait_for(what, || condition().then_some(()));
}

/// Asserts that at least one of `tries` reactions takes `limit` at most. One is enough because the machine may be busy
/// with other tests; a program that waits for a timer takes longer each time.
#[track_caller]
pub(crate) fn assert_within(tries: usize, limit: Duration, mut reaction: impl FnMut() -> Duration) {
    let mut times = Vec::new();
    while times.len() < tries {
        match reaction() {
            time if time <= limit => return,
            time => times.push(time),
        }
    }
    panic!("{times:?}, {limit:?} allowed");
}

/// Polls `question` until it has an answer or the deadline has passed.
pub(crate) fn poll_until<T>(
    deadline: Instant,
    mut question: impl FnMut() -> Option<T>,
) -> Option<T> {
    loop {
        if let Some(answer) = question() {
            return Some(answer);
        }
        if Instant::now() >= deadline {
            return None;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The longest that any step may take which should happen without delay.
pub(crate) const WAIT_LIMIT: Duration = Duration::from_secs(10);
