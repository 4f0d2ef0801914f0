//! Warns of backend outages: when one begins, once in [`LOG_INTERVAL`] while it lasts, and when the backend recovers.
//!
//! A header may choose the backend (`--dynamic-destination`), so the number of backends that are remembered and logged
//! is bounded.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::io::ErrorKind;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use peername_sys::throttle::LOG_INTERVAL;

use crate::backend::Backend;

/// The backends that failed last, of the whole process: a reload does not make one healthy.
#[derive(Debug)]
struct Outages {
    /// The number of backends that are down. While it is 0, a success reads nothing else.
    down: AtomicUsize,
    backends: Mutex<BTreeMap<Backend, State>>,
}

/// The state of one backend.
#[derive(Clone, Copy, Debug)]
struct State {
    /// When the outage began; `None` once the backend has accepted a client again.
    since: Option<Instant>,
    /// When it last did not accept a client. It says how much `since` is worth: a backend is not probed, so one that no
    /// client is sent to stays down however long it has been up again.
    last_failure: Option<Instant>,
    /// Clients it has not accepted since the outage began.
    failed: u64,
    /// When a warning was last logged.
    logged: Option<Instant>,
    /// Whether this outage has been logged, so that its end is logged too.
    is_logged: bool,
}

/// What to log of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Down {
    /// Clients not accepted since the outage began, this one included.
    failed: u64,
}

/// What to log of a recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Up {
    failed: u64,
    lasted: Duration,
}

/// Reports that a backend did not accept a client, because of `error`.
pub(crate) fn report_failure(backend: Backend, kind: ErrorKind, error: impl Display) {
    if let Some(Down { failed }) = OUTAGES.failed(backend, Instant::now()) {
        let advice = advice(kind);
        tracing::warn!(
            failed,
            "backend {backend} accepts no clients: {error}; {advice}"
        );
    }
}

/// Whether a backend is down, as far as is known: one relaxed load.
pub(crate) fn is_any_down() -> bool {
    OUTAGES.down.load(Relaxed) > 0
}

/// A backend that once did not accept a client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FailedBackend {
    pub(crate) backend: Backend,
    /// For how long it has accepted none; `None` if it accepts clients now.
    pub(crate) down_for: Option<Duration>,
    /// The time since the last client that it did not accept.
    pub(crate) last_failure: Duration,
}

/// The backends that once did not accept a client, as far as they are remembered.
pub(crate) fn states() -> Vec<FailedBackend> {
    let elapsed = |at: Option<Instant>| at.map(|at| at.elapsed());
    let backends = OUTAGES.backends.lock();
    let states = backends.iter();
    states
        .map(|(&backend, state)| FailedBackend {
            backend,
            down_for: elapsed(state.since),
            last_failure: elapsed(state.last_failure).unwrap_or_default(),
        })
        .collect()
}

/// Reports that a backend has accepted a client, or answered it.
pub(crate) fn report_success(backend: Backend) {
    if !is_any_down() {
        return;
    }
    if let Some(Up { failed, lasted }) = OUTAGES.accepted(backend, Instant::now()) {
        let seconds = lasted.as_secs();
        tracing::warn!(failed, "backend {backend} accepts again, after {seconds} s");
    }
}

impl Outages {
    const fn new() -> Self {
        Self {
            down: AtomicUsize::new(0),
            backends: Mutex::new(BTreeMap::new()),
        }
    }

    fn failed(&self, backend: Backend, now: Instant) -> Option<Down> {
        let mut backends = self.backends.lock();
        if !backends.contains_key(&backend) && backends.len() >= MAX_BACKENDS {
            let stale = |state: &State| state.logged.is_none_or(|at| now - at >= LOG_INTERVAL);
            backends.retain(|_, state| !stale(state));
        }
        if !backends.contains_key(&backend) && backends.len() >= MAX_BACKENDS {
            return None;
        }
        let state = backends.entry(backend).or_insert(State::UP);
        let down = state.failed(now);
        self.count(&backends);
        down
    }

    fn accepted(&self, backend: Backend, now: Instant) -> Option<Up> {
        let mut backends = self.backends.lock();
        let up = backends.get_mut(&backend)?.accepted(now);
        self.count(&backends);
        up
    }

    fn count(&self, backends: &BTreeMap<Backend, State>) {
        let down = backends.values().filter(|state| state.since.is_some());
        self.down.store(down.count(), Relaxed);
    }
}

impl State {
    const UP: Self = Self {
        since: None,
        last_failure: None,
        failed: 0,
        logged: None,
        is_logged: false,
    };

    fn failed(&mut self, now: Instant) -> Option<Down> {
        self.since.get_or_insert(now);
        self.last_failure = Some(now);
        self.failed += 1;
        if self.logged.is_some_and(|at| now - at < LOG_INTERVAL) {
            return None;
        }
        self.logged = Some(now);
        self.is_logged = true;
        Some(Down {
            failed: self.failed,
        })
    }

    fn accepted(&mut self, now: Instant) -> Option<Up> {
        let since = self.since.take()?;
        let failed = std::mem::take(&mut self.failed);
        std::mem::take(&mut self.is_logged).then(|| Up {
            failed,
            lasted: now - since,
        })
    }
}

/// What to check first.
fn advice(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::ConnectionRefused => {
            "is the server running, and does it listen there (`ss -lntu`)?"
        }
        ErrorKind::TimedOut => {
            "is its host up, does a firewall drop the packets, and do its replies come back to this host \
             (`peername doctor` with the options of the proxy)?"
        }
        ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable => {
            "does this host have a route to it, and is its host up?"
        }
        _ => "the server's own log may say why",
    }
}

/// Backends remembered, and so the most lines per interval.
const MAX_BACKENDS: usize = 16;
static OUTAGES: Outages = Outages::new();

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    fn backend(port: u16) -> Backend {
        SocketAddr::from(([127, 0, 0, 1], port)).into()
    }

    #[test]
    fn an_outage_is_logged_at_its_start_in_each_interval_and_at_its_end() {
        let (outages, start) = (Outages::new(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        let down = |failed| Some(Down { failed });
        assert_eq!(outages.accepted(backend(1), at(0)), None);
        assert_eq!(outages.failed(backend(1), at(0)), down(1));
        assert_eq!(outages.failed(backend(1), at(9)), None);
        assert_eq!(outages.failed(backend(1), at(10)), down(3));
        assert_eq!(outages.accepted(backend(2), at(11)), None);
        let up = Up {
            failed: 3,
            lasted: Duration::from_secs(12),
        };
        assert_eq!(outages.accepted(backend(1), at(12)), Some(up));
        assert_eq!(outages.accepted(backend(1), at(12)), None);
        assert_eq!(outages.down.load(Relaxed), 0);
    }

    /// A backend that accepts every other client must not write two lines for each of them.
    #[test]
    fn an_outage_soon_after_another_waits_for_its_turn() {
        let (outages, start) = (Outages::new(), Instant::now());
        let mut lines = 0;
        for second in 0..100 {
            let now = start + Duration::from_secs(second);
            lines += usize::from(outages.failed(backend(1), now).is_some());
            lines += usize::from(outages.accepted(backend(1), now).is_some());
        }
        assert_eq!(lines, 20);
    }

    #[test]
    fn headers_that_choose_backends_fill_neither_the_log_nor_the_memory() {
        let (outages, now) = (Outages::new(), Instant::now());
        let lines = (1..=1000).filter(|&port| outages.failed(backend(port), now).is_some());
        assert_eq!(lines.count(), MAX_BACKENDS);
        let later = now + LOG_INTERVAL;
        assert!(outages.failed(backend(2000), later).is_some());
        assert_eq!(outages.backends.lock().len(), 1);
        assert_eq!(outages.down.load(Relaxed), 1);
    }
}
