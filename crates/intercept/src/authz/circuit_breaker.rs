//! A service that fails every time is not asked every time.
//!
//! Who asks anyway waits for the whole timeout, holds memory meanwhile, and keeps the service from recovering.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Opens after [`FAILURES`] in a row within [`WINDOW`]; [`PAUSE`] later one question is let through to see.
///
/// In a row: a service that answers most questions keeps answering them, however many fail besides.
#[derive(Debug, Default)]
pub(crate) struct Breaker {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// When it failed, since it last answered; the newest at the back.
    failures: VecDeque<Instant>,
    /// Nobody asks before then; `None` while it is closed.
    open_until: Option<Instant>,
    /// Somebody is seeing whether it answers again.
    probing: bool,
}

/// What an answer, or the lack of it, did to the breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turned {
    /// Nothing.
    Not,
    /// It is open now and was not before.
    Open,
    /// It is closed again.
    Closed,
}

/// Leave to ask once. Dropped without a result (the client has gone), it says nothing about the service.
#[derive(Debug)]
pub(crate) struct Pass<'a> {
    breaker: &'a Breaker,
    is_probe: bool,
}

impl Breaker {
    /// Leave to ask, unless the service has its pause.
    pub(crate) fn pass(&self, now: Instant) -> Option<Pass<'_>> {
        let mut state = self.lock();
        if state.rests(now) {
            return None;
        }
        let is_probe = state.open_until.is_some();
        state.probing |= is_probe;
        Some(Pass {
            breaker: self,
            is_probe,
        })
    }

    /// Whether [`Breaker::pass`] would give none.
    pub(crate) fn rests(&self, now: Instant) -> bool {
        self.lock().rests(now)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pass<'_> {
    /// It answered.
    pub(crate) fn answered(self) -> Turned {
        let mut state = self.breaker.lock();
        // What was asked before it opened tells nothing about now.
        if state.open_until.is_some() && !self.is_probe {
            return Turned::Not;
        }
        state.failures.clear();
        match state.open_until.take() {
            Some(_) => Turned::Closed,
            None => Turned::Not,
        }
    }

    /// It did not.
    pub(crate) fn failed(self, now: Instant) -> Turned {
        let mut state = self.breaker.lock();
        let was_open = state.open_until.is_some();
        let opens = match was_open {
            true => self.is_probe,
            false => state.has_failed_enough(now),
        };
        if opens {
            state.open_until = Some(now + PAUSE);
        }
        match opens && !was_open {
            true => Turned::Open,
            false => Turned::Not,
        }
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        if self.is_probe {
            self.breaker.lock().probing = false;
        }
    }
}

impl State {
    fn rests(&self, now: Instant) -> bool {
        let until = self.open_until;
        until.is_some_and(|until| self.probing || now < until)
    }

    fn has_failed_enough(&mut self, now: Instant) -> bool {
        self.failures.push_back(now);
        if self.failures.len() > FAILURES {
            self.failures.pop_front();
        }
        let first = self.failures.front();
        self.failures.len() == FAILURES && first.is_some_and(|first| now - *first <= WINDOW)
    }
}

/// Fewer, and a restart of the service opens it.
const FAILURES: usize = 10;
const WINDOW: Duration = Duration::from_secs(5);
/// For so long at most a service that is back goes unnoticed.
const PAUSE: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    fn fail(breaker: &Breaker, times: usize, now: Instant) -> Vec<Turned> {
        let each = (0..times).map(|_| breaker.pass(now).unwrap().failed(now));
        each.collect()
    }

    #[test]
    fn ten_failures_in_a_row_open_it_and_an_answer_closes_it() {
        let (breaker, start) = (Breaker::default(), Instant::now());
        let nine = [Turned::Not; FAILURES - 1];
        assert_eq!(fail(&breaker, FAILURES - 1, start), nine);
        assert_eq!(fail(&breaker, 1, start), [Turned::Open]);
        assert!(breaker.pass(start).is_none());
        let later = start + PAUSE;
        let probe = breaker.pass(later).unwrap();
        assert!(breaker.pass(later).is_none(), "one probe at a time");
        assert_eq!(probe.failed(later), Turned::Not);
        assert!(
            breaker.pass(later).is_none(),
            "a failed probe begins another pause"
        );
        let later = later + PAUSE;
        assert_eq!(breaker.pass(later).unwrap().answered(), Turned::Closed);
        assert_eq!(breaker.pass(later).unwrap().answered(), Turned::Not);
        assert_eq!(fail(&breaker, FAILURES - 1, later), nine);
    }

    #[test]
    fn failures_among_answers_or_far_apart_do_not() {
        let (breaker, mut now) = (Breaker::default(), Instant::now());
        for _ in 0..100 {
            fail(&breaker, FAILURES - 1, now);
            breaker.pass(now).unwrap().answered();
        }
        for _ in 0..100 {
            assert_eq!(fail(&breaker, 1, now), [Turned::Not]);
            now += WINDOW / 9 + Duration::from_millis(1);
        }
    }

    #[test]
    fn who_leaves_while_probing_leaves_the_probe_to_the_next() {
        let (breaker, now) = (Breaker::default(), Instant::now());
        let before = breaker.pass(now).unwrap();
        fail(&breaker, FAILURES, now);
        assert_eq!(before.answered(), Turned::Not, "asked before it opened");
        let later = now + PAUSE;
        drop(breaker.pass(later).unwrap());
        assert!(breaker.pass(later).is_some());
    }
}
