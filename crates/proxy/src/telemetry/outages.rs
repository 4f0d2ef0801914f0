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

/// The backends that failed last. It is global: a reload does not make a backend healthy.
#[derive(Debug)]
struct Outages {
    /// The number of backends that are down. While it is 0, a success reads nothing else.
    down: AtomicUsize,
    backends: Mutex<BTreeMap<Backend, BackendState>>,
}

/// The state of one backend.
#[derive(Clone, Copy, Debug)]
struct BackendState {
    /// When the outage began; `None` once the backend has accepted a client again.
    since: Option<Instant>,
    /// When the backend last did not accept a client. Backends are not probed, so one that gets no more clients counts as down
    /// even if it is up again; the time of its last failure shows that.
    last_failure: Option<Instant>,
    /// Clients that were not accepted since the outage began.
    failed: u64,
    /// When a warning was last logged.
    logged_at: Option<Instant>,
    /// Whether this outage has been logged, so that its end is logged too.
    is_logged: bool,
}

/// The fields of a warning about a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Down {
    /// Clients not accepted since the outage began, this one included.
    failed: u64,
}

/// The fields of a warning about a recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Up {
    failed: u64,
    lasted: Duration,
}

/// Reports that a backend did not accept a client, because of `error`; `outcome` is the outcome of the client's connection.
pub(crate) fn report_failure(
    backend: Backend,
    outcome: &'static str,
    kind: ErrorKind,
    error: impl Display,
) {
    if let Some(Down { failed }) = OUTAGES.record_failure(backend, Instant::now()) {
        let advice = advice(kind);
        tracing::warn!(
            outcome,
            upstream = %backend.address,
            failed,
            "backend {backend} accepts no clients: {error}; {advice}"
        );
    }
}

/// Whether any backend is known to be down. Costs one relaxed load.
pub(crate) fn is_any_down() -> bool {
    OUTAGES.down.load(Relaxed) > 0
}

/// A backend that once did not accept a client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FailedBackend {
    pub(crate) backend: Backend,
    /// How long the backend has accepted no client; `None` if it accepts clients now.
    pub(crate) down_for: Option<Duration>,
    /// The time since a client was last not accepted.
    pub(crate) last_failure: Duration,
}

/// The backends that once did not accept a client, as far as they are remembered.
pub(crate) fn failed_backends() -> Vec<FailedBackend> {
    OUTAGES
        .backends
        .lock()
        .iter()
        .map(|(&backend, state)| FailedBackend {
            backend,
            down_for: state.since.map(|since| since.elapsed()),
            last_failure: state.last_failure.map_or(Duration::ZERO, |at| at.elapsed()),
        })
        .collect()
}

/// Reports that a backend has accepted a client, or answered it.
pub(crate) fn report_success(backend: Backend) {
    if !is_any_down() {
        return;
    }
    if let Some(Up { failed, lasted }) = OUTAGES.record_success(backend, Instant::now()) {
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

    /// Returns what to log, if a warning is due.
    fn record_failure(&self, backend: Backend, now: Instant) -> Option<Down> {
        let mut backends = self.backends.lock();
        if !backends.contains_key(&backend) && backends.len() >= MAX_BACKENDS {
            backends.retain(|_, state| state.is_logged_recently(now));
            if backends.len() >= MAX_BACKENDS {
                return None;
            }
        }
        let state = backends.entry(backend).or_insert(BackendState::UP);
        let down = state.record_failure(now);
        self.update_down(&backends);
        down
    }

    /// Returns what to log, if an outage that was logged has ended.
    fn record_success(&self, backend: Backend, now: Instant) -> Option<Up> {
        let mut backends = self.backends.lock();
        let up = backends.get_mut(&backend)?.record_success(now);
        self.update_down(&backends);
        up
    }

    fn update_down(&self, backends: &BTreeMap<Backend, BackendState>) {
        let down = backends
            .values()
            .filter(|state| state.since.is_some())
            .count();
        self.down.store(down, Relaxed);
    }
}

impl BackendState {
    const UP: Self = Self {
        since: None,
        last_failure: None,
        failed: 0,
        logged_at: None,
        is_logged: false,
    };

    fn is_logged_recently(&self, now: Instant) -> bool {
        self.logged_at.is_some_and(|at| now - at < LOG_INTERVAL)
    }

    fn record_failure(&mut self, now: Instant) -> Option<Down> {
        self.since.get_or_insert(now);
        self.last_failure = Some(now);
        self.failed += 1;
        if self.is_logged_recently(now) {
            return None;
        }
        self.logged_at = Some(now);
        self.is_logged = true;
        Some(Down {
            failed: self.failed,
        })
    }

    fn record_success(&mut self, now: Instant) -> Option<Up> {
        let since = self.since.take()?;
        let failed = std::mem::take(&mut self.failed);
        std::mem::take(&mut self.is_logged).then(|| Up {
            failed,
            lasted: now - since,
        })
    }
}

/// Names what the operator should check first.
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

/// Limit of remembered backends, and so of lines per interval.
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
    fn outage_is_logged_at_its_start_in_each_interval_and_at_its_end() {
        let (outages, start) = (Outages::new(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        let down = |failed| Some(Down { failed });
        assert_eq!(outages.record_success(backend(1), at(0)), None);
        assert_eq!(outages.record_failure(backend(1), at(0)), down(1));
        assert_eq!(outages.record_failure(backend(1), at(9)), None);
        assert_eq!(outages.record_failure(backend(1), at(10)), down(3));
        assert_eq!(outages.record_success(backend(2), at(11)), None);
        let up = Up {
            failed: 3,
            lasted: Duration::from_secs(12),
        };
        assert_eq!(outages.record_success(backend(1), at(12)), Some(up));
        assert_eq!(outages.record_success(backend(1), at(12)), None);
        assert_eq!(outages.down.load(Relaxed), 0);
    }

    /// A backend that accepts every other client must not write two lines for each of them.
    #[test]
    fn backend_that_fails_again_and_again_is_logged_twice_an_interval() {
        let (outages, start) = (Outages::new(), Instant::now());
        let mut lines = 0;
        for second in 0..100 {
            let now = start + Duration::from_secs(second);
            lines += usize::from(outages.record_failure(backend(1), now).is_some());
            lines += usize::from(outages.record_success(backend(1), now).is_some());
        }
        assert_eq!(lines, 20);
    }

    #[test]
    fn number_of_remembered_and_logged_backends_is_bounded() {
        let (outages, now) = (Outages::new(), Instant::now());
        let lines = (1..=1000).filter(|&port| outages.record_failure(backend(port), now).is_some());
        assert_eq!(lines.count(), MAX_BACKENDS);
        let later = now + LOG_INTERVAL;
        assert!(outages.record_failure(backend(2000), later).is_some());
        assert_eq!(outages.backends.lock().len(), 1);
        assert_eq!(outages.down.load(Relaxed), 1);
    }
}
