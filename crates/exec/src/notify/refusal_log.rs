//! The throttled log of refused connections, with the reason and the remedy.

use std::time::{Duration, Instant};

use peername_identity::{Counter, Refusal, RefusalReader, RefusalVerbosity, Settings};
use peername_sys::throttle::LOG_INTERVAL;

use super::reasons::{Explained, concerns_configuration};
use crate::stderr_line::try_write_line;

/// Reads the refusals that the program's processes and the supervisor record in the table, and logs them as the table's
/// [`RefusalVerbosity`] says: one line each, or one line for each reason in [`LOG_INTERVAL`].
#[derive(Debug)]
pub(super) struct RefusalLog {
    reader: RefusalReader,
    /// The earliest time of the next read, so that a flood does not keep the supervisor busy.
    next_read: Instant,
    reasons: [ReasonState; Counter::ALL.len()],
}

/// The log's state for one reason.
#[derive(Clone, Copy, Debug, Default)]
struct ReasonState {
    logged_at: Option<Instant>,
    /// The value of the reason's counter at that time.
    counted: u64,
}

impl RefusalLog {
    pub(super) fn new() -> Self {
        Self {
            reader: RefusalReader::default(),
            next_read: Instant::now(),
            reasons: Default::default(),
        }
    }

    /// When [`RefusalLog::write`] must be called; `None` if there are no new refusals.
    pub(super) fn next_deadline(&self, settings: Settings<'_>) -> Option<Instant> {
        settings.has_unread_refusals().then_some(self.next_read)
    }

    /// Logs the recorded refusals, if the deadline has passed.
    pub(super) fn write(&mut self, settings: Settings<'_>) {
        let now = Instant::now();
        if self.next_deadline(settings).is_some_and(|at| at <= now) {
            self.next_read = now + READ_INTERVAL;
            for line in self.lines(settings, now) {
                try_write_line(&line);
            }
        }
    }

    fn lines(&mut self, settings: Settings<'_>, now: Instant) -> Vec<String> {
        settings.arm_refusal_wakeup();
        let mut lines = Vec::new();
        while let Some(refusal) = self.reader.next(settings) {
            lines.extend(self.line(settings, refusal, now));
        }
        lines
    }

    /// The line for a refusal, if it is to be logged.
    fn line(&mut self, settings: Settings<'_>, refusal: Refusal, now: Instant) -> Option<String> {
        let explained = Explained(refusal);
        let state = self.reasons.get_mut(refusal.reason as usize)?;
        let logged_at = state.logged_at;
        let verbosity = settings.refusal_verbosity();
        if refusal.reason == Counter::Accepted && verbosity != RefusalVerbosity::Off {
            // The table has recorded each stand-in once, and only this line tells the client that it shows.
            state.logged_at = Some(now);
            return Some(explained.stand_in_line(logged_at.is_none()));
        }
        match verbosity {
            RefusalVerbosity::Off => return None,
            RefusalVerbosity::Each => return Some(explained.line(1)),
            RefusalVerbosity::Throttled => {}
        }
        let is_throttled = logged_at.is_some_and(|at| now < at + LOG_INTERVAL);
        if is_throttled || !concerns_configuration(refusal.reason) {
            return None;
        }
        let counted = settings.counter(refusal.reason);
        let new_refusals = counted.saturating_sub(state.counted);
        *state = ReasonState {
            logged_at: Some(now),
            counted,
        };
        Some(explained.line(new_refusals))
    }
}

/// The minimum time between two reads.
const READ_INTERVAL: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use peername_identity::Table;

    use super::*;

    fn memory() -> Vec<AtomicU64> {
        (0..Table::size(64) / 8)
            .map(|_| AtomicU64::new(0))
            .collect()
    }

    fn refusal(reason: Counter) -> Refusal {
        let peer = "192.0.2.7:4711".parse().expect("an address");
        Refusal {
            reason,
            peer,
            port: 443,
        }
    }

    #[test]
    fn each_reason_is_logged_once_in_an_interval_with_its_count() {
        let memory = memory();
        let settings = Table::new(&memory).expect("a table").settings();
        settings.set_refusal_verbosity(RefusalVerbosity::Throttled);
        let (mut log, start) = (RefusalLog::new(), Instant::now());
        let mut lines_at = |seconds, reasons: &[Counter]| {
            reasons
                .iter()
                .for_each(|&reason| _ = settings.record_refusal(refusal(reason)));
            log.lines(settings, start + Duration::from_secs(seconds))
        };
        let first = lines_at(0, &[Counter::Untrusted, Counter::Untrusted, Counter::Late]);
        assert_eq!(first.len(), 2, "{first:?}");
        assert!(first[0].contains("add --trust 192.0.2.7"), "{first:?}");
        assert!(first[1].contains("--header-timeout"), "{first:?}");
        assert_eq!(lines_at(9, &[Counter::Untrusted; 300]), [""; 0]);
        let later = lines_at(10, &[Counter::Untrusted]);
        assert_eq!(later.len(), 1, "{later:?}");
        assert!(later[0].contains("refused 301 connections"), "{later:?}");
    }

    #[test]
    fn connection_that_closes_early_is_logged_with_verbose_only() {
        let memory = memory();
        let settings = Table::new(&memory).expect("a table").settings();
        for (verbosity, lines) in [
            (RefusalVerbosity::Throttled, 0),
            (RefusalVerbosity::Each, 2),
        ] {
            settings.set_refusal_verbosity(verbosity);
            settings.record_refusal(refusal(Counter::Closed));
            let logged = RefusalLog::new().lines(settings, Instant::now());
            assert_eq!(logged.len(), lines, "{verbosity:?}: {logged:?}");
        }
    }
}
