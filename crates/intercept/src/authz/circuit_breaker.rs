//! A circuit breaker: a service that keeps failing is not asked for a while. Otherwise each check would wait for the whole
//! timeout, hold memory meanwhile, and keep the service from recovering.

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Opens after [`FAILURES`] consecutive failures within [`WINDOW`]; after [`PAUSE`], one request probes the service.
///
/// Because the failures have to be consecutive, a service that answers most requests is never suspended.
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
    is_probing: bool,
}

/// The effect of a check on the breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transition {
    Unchanged,
    Opened,
    Closed,
}

/// A permit for one check. Dropping it without a result, as when the client closes its connection, changes nothing.
#[derive(Debug)]
pub(crate) struct BreakerPermit<'a> {
    breaker: &'a CircuitBreaker,
    is_probe: bool,
}

impl CircuitBreaker {
    /// Acquires a permit for a check; `None` while the breaker is open.
    pub(crate) fn acquire(&self, now: Instant) -> Option<BreakerPermit<'_>> {
        let mut state = self.state.lock();
        if state.is_open(now) {
            return None;
        }
        let is_probe = state.open_until.is_some();
        state.is_probing |= is_probe;
        Some(BreakerPermit {
            breaker: self,
            is_probe,
        })
    }

    /// Whether the breaker has opened and not closed again, even if the next request may probe the service.
    pub(crate) fn is_suspended(&self) -> bool {
        self.state.lock().open_until.is_some()
    }

    /// Whether [`CircuitBreaker::acquire`] would return `None`.
    pub(crate) fn is_open(&self, now: Instant) -> bool {
        self.state.lock().is_open(now)
    }
}

impl BreakerPermit<'_> {
    /// Records that the service responded.
    pub(crate) fn succeeded(self) -> Transition {
        let mut state = self.breaker.state.lock();
        // A check from before the breaker opened tells nothing about the service now.
        if state.open_until.is_some() && !self.is_probe {
            return Transition::Unchanged;
        }
        state.failures.clear();
        match state.open_until.take() {
            Some(_) => Transition::Closed,
            None => Transition::Unchanged,
        }
    }

    /// Records that the service failed.
    pub(crate) fn failed(self, now: Instant) -> Transition {
        let mut state = self.breaker.state.lock();
        let was_open = state.open_until.is_some();
        let opens = match was_open {
            true => self.is_probe,
            false => state.add_failure(now),
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
            self.breaker.state.lock().is_probing = false;
        }
    }
}

impl State {
    fn is_open(&self, now: Instant) -> bool {
        self.open_until
            .is_some_and(|until| self.is_probing || now < until)
    }

    /// Adds a failure. Returns whether the breaker has to open.
    fn add_failure(&mut self, now: Instant) -> bool {
        self.failures.push_back(now);
        if self.failures.len() > FAILURES {
            self.failures.pop_front();
        }
        let first = self.failures.front();
        self.failures.len() == FAILURES && first.is_some_and(|first| now - *first <= WINDOW)
    }
}

/// The number of consecutive failures that open the breaker. If it were smaller, a restart of the service could open the breaker.
const FAILURES: usize = 10;
/// The longest time from the first of these failures to the last.
const WINDOW: Duration = Duration::from_secs(5);
/// The time from the opening of the breaker to the request that probes the service.
const PAUSE: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    fn fail(breaker: &CircuitBreaker, times: usize, now: Instant) -> Vec<Transition> {
        (0..times)
            .map(|_| breaker.acquire(now).unwrap().failed(now))
            .collect()
    }

    #[test]
    fn consecutive_failures_open_it_and_a_successful_probe_closes_it() {
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
            // The nine intervals between ten failures are longer than the window.
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
