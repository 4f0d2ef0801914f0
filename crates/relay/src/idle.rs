//! The clock of a connection's silence.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

/// A deadline that moves with each sign of life but is armed anew only when it fires, so that moving
/// bytes never touches the timer wheel. Absent until a limit is set: most connections have none.
#[derive(Debug, Default)]
pub(crate) struct Idle(Option<Box<Clock>>);

#[derive(Debug)]
struct Clock {
    limit: Duration,
    alive: Instant,
    timer: Pin<Box<Sleep>>,
}

impl Idle {
    /// Counts silence from now, up to `limit`.
    pub(crate) fn limit(&mut self, limit: Duration) {
        let alive = Instant::now();
        let timer = Box::pin(sleep_until(alive + limit));
        self.0 = Some(Box::new(Clock {
            limit,
            alive,
            timer,
        }));
    }

    /// There was a sign of life.
    pub(crate) fn alive(&mut self) {
        if let Some(clock) = &mut self.0 {
            clock.alive = Instant::now();
        }
    }

    /// There was a sign of life then.
    pub(crate) fn alive_since(&mut self, last: Option<Instant>) {
        if let (Some(clock), Some(last)) = (&mut self.0, last) {
            clock.alive = clock.alive.max(last);
        }
    }

    /// Ready when the limit has passed since the last sign of life; pending for ever without one.
    pub(crate) fn poll_expired(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(clock) = &mut self.0 else {
            return Poll::Pending;
        };
        while clock.timer.as_mut().poll(cx).is_ready() {
            let deadline = clock.alive + clock.limit;
            if deadline <= Instant::now() {
                return Poll::Ready(());
            }
            clock.timer.as_mut().reset(deadline);
        }
        Poll::Pending
    }
}
