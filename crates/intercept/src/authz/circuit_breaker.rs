//! A circuit breaker: a service that keeps failing is not asked for a while.
//!
//! Each check of such a service would wait for the whole timeout, hold memory meanwhile, and keep the service from recovering.

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Opens after [`FAILURES`] in a row within [`WINDOW`]; [`PAUSE`] later one request probes the service.
///
/// In a row: a service that answers most requests is never suspended, however many others fail.
#[derive(Debug, Default)]
pub(crate) struct CircuitBreaker {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Times of the failures since the last success; the newest at the back.
    failures: VecDeque<Instant>,
    /// When the pause ends; `None` while the breaker is closed.
    open_until: Option<Instant>,
    /// Whether a probe is in flight.
    probing: bool,
}

/// What a result did to the breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transition {
    /// Its state is as before.
    Unchanged,
    /// It has opened.
    Opened,
    /// It has closed again.
    Closed,
}

/// A permit to ask once. Dropped without a result (the client has closed its connection), it does not count.
#[derive(Debug)]
pub(crate) struct BreakerPermit<'a> {
    breaker: &'a CircuitBreaker,
    is_probe: bool,
}

impl CircuitBreaker {
    /// Acquires a permit to ask; `None` while the breaker is open.
    pub(crate) fn acquire(&self, now: Instant) -> Option<BreakerPermit<'_>> {
        let mut state = self.state.lock();
        if state.is_open(now) {
            return None;
        }
        let is_probe = state.open_until.is_some();
        state.probing |= is_probe;
        Some(BreakerPermit {
            breaker: self,
            is_probe,
        })
    }

    /// Whether it has opened and not closed again.
    pub(crate) fn is_suspended(&self) -> bool {
        self.state.lock().open_until.is_some()
    }

    /// Whether [`CircuitBreaker::acquire`] would return none.
    pub(crate) fn is_open(&self, now: Instant) -> bool {
        self.state.lock().is_open(now)
    }
}

impl BreakerPermit<'_> {
    /// Notes that the service answered.
    pub(crate) fn succeeded(self) -> Transition {
        let mut state = self.breaker.state.lock();
        // A request from before it opened tells nothing about the service now.
        if state.open_until.is_some() && !self.is_probe {
            return Transition::Unchanged;
        }
        state.failures.clear();
        match state.open_until.take() {
            Some(_) => Transition::Closed,
            None => Transition::Unchanged,
        }
    }

    /// Notes that the service failed.
    pub(crate) fn failed(self, now: Instant) -> Transition {
        let mut state = self.breaker.state.lock();
        let was_open = state.open_until.is_some();
        let opens = match was_open {
            true => self.is_probe,
            false => state.has_failed_enough(now),
        };
        if opens {
            state.open_until = Some(now + PAUSE);
        }
        match opens && !was_open {
            true => Transition::Opened,
            false => Transition::Unchanged,
        }
    }
}

impl Drop for BreakerPermit<'_> {
    fn drop(&mut self) {
        if self.is_probe {
            self.breaker.state.lock().probing = false;
        }
    }
}

impl State {
    fn is_open(&self, now: Instant) -> bool {
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

/// The failures in a row that open the breaker. With fewer, a restart of the service would open it.
const FAILURES: usize = 10;
const WINDOW: Duration = Duration::from_secs(5);
/// The time from opening the breaker to the next probe, the first request that can find the service recovered.
const PAUSE: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    fn fail(breaker: &CircuitBreaker, times: usize, now: Instant) -> Vec<Transition> {
        let each = (0..times).map(|_| breaker.acquire(now).unwrap().failed(now));
        each.collect()
    }

    #[test]
    fn ten_failures_in_a_row_open_it_and_a_success_closes_it() {
        let (breaker, start) = (CircuitBreaker::default(), Instant::now());
        let nine = [Transition::Unchanged; FAILURES - 1];
        assert_eq!(fail(&breaker, FAILURES - 1, start), nine);
        assert_eq!(fail(&breaker, 1, start), [Transition::Opened]);
        assert!(breaker.acquire(start).is_none());
        let later = start + PAUSE;
        let probe = breaker.acquire(later).unwrap();
        assert!(breaker.acquire(later).is_none(), "one probe at a time");
        assert_eq!(probe.failed(later), Transition::Unchanged);
        assert!(
            breaker.acquire(later).is_none(),
            "a failed probe begins another pause"
        );
        let later = later + PAUSE;
        assert_eq!(
            breaker.acquire(later).unwrap().succeeded(),
            Transition::Closed
        );
        assert_eq!(
            breaker.acquire(later).unwrap().succeeded(),
            Transition::Unchanged
        );
        assert_eq!(fail(&breaker, FAILURES - 1, later), nine);
    }

    #[test]
    fn failures_among_successes_or_far_apart_do_not_open_it() {
        let (breaker, mut now) = (CircuitBreaker::default(), Instant::now());
        for _ in 0..100 {
            fail(&breaker, FAILURES - 1, now);
            breaker.acquire(now).unwrap().succeeded();
        }
        for _ in 0..100 {
            assert_eq!(fail(&breaker, 1, now), [Transition::Unchanged]);
            now += WINDOW / 9 + Duration::from_millis(1);
        }
    }

    #[test]
    fn a_cancelled_probe_leaves_probing_to_the_next_request() {
        let (breaker, now) = (CircuitBreaker::default(), Instant::now());
        let before = breaker.acquire(now).unwrap();
        fail(&breaker, FAILURES, now);
        assert_eq!(
            before.succeeded(),
            Transition::Unchanged,
            "asked before it opened"
        );
        let later = now + PAUSE;
        drop(breaker.acquire(later).unwrap());
        assert!(breaker.acquire(later).is_some());
    }
}
