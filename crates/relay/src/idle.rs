//! The idle timeout of a connection.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

/// A lazy idle timer: activity only records the time, and the timer is reset when it fires early. So moving
/// bytes never touches the timer wheel. There is no timer until a limit is set: most connections have none.
#[derive(Debug, Default)]
pub(crate) struct IdleTimer(Option<Box<Timer>>);

#[derive(Debug)]
struct Timer {
    limit: Duration,
    last_activity: Instant,
    sleep: Pin<Box<Sleep>>,
}

impl IdleTimer {
    /// Starts the timeout: idle time counts from now, up to `limit`.
    pub(crate) fn set_limit(&mut self, limit: Duration) {
        let last_activity = Instant::now();
        let sleep = Box::pin(sleep_until(last_activity + limit));
        self.0 = Some(Box::new(Timer {
            limit,
            last_activity,
            sleep,
        }));
    }

    /// Restarts the idle time.
    pub(crate) fn record_activity(&mut self) {
        if let Some(timer) = &mut self.0 {
            timer.last_activity = Instant::now();
        }
    }

    /// Ready when the limit has passed since the last activity; pending for ever without a limit.
    pub(crate) fn poll_expired(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(timer) = &mut self.0 else {
            return Poll::Pending;
        };
        while timer.sleep.as_mut().poll(cx).is_ready() {
            let deadline = timer.last_activity + timer.limit;
            if deadline <= Instant::now() {
                return Poll::Ready(());
            }
            timer.sleep.as_mut().reset(deadline);
        }
        Poll::Pending
    }
}
