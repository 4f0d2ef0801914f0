//! The throttled log of refused connections, with the reason and the remedy.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use peername_identity::{Counter, Refusal, RefusalReader, RefusalVerbosity, Settings};
use peername_sys::throttle::LOG_INTERVAL;

use super::reasons::{Explained, concerns_configuration};
use crate::stderr_line::write_line_if_writable;

/// Reads the refusals that the program's processes and the supervisor record in the table, and logs them as the table's
/// [`RefusalVerbosity`] says: one line each, or one line for each reason in [`LOG_INTERVAL`].
#[derive(Debug)]
pub(super) struct RefusalLog {
    reader: RefusalReader,
    /// The earliest time of the next read, so that a flood does not keep the supervisor busy.
    next_read: Instant,
    reasons: [ReasonState; Counter::ALL.len()],
    stand_ins: StandInLines,
}

/// The lines about stand-ins in an interval.
#[derive(Debug, Default)]
struct StandInLines {
    since: Option<Instant>,
    count: usize,
}

/// The log's state for one reason.
#[derive(Clone, Copy, Debug, Default)]
struct ReasonState {
    logged_at: Option<Instant>,
    /// The value of the reason's counter at that time.
    counted: u64,
}

impl RefusalLog {
    /// A log of what is recorded from now on: an earlier supervisor has logged what the table has.
    pub(super) fn new(settings: Settings<'_>) -> Self {
        Self {
            reader: RefusalReader::new(settings),
            next_read: Instant::now(),
            reasons: Default::default(),
            stand_ins: StandInLines::default(),
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
            self.write_now(settings);
        }
    }

    /// Logs the recorded refusals at once, because this process exits: the next supervisor reads only later ones.
    pub(super) fn write_now(&mut self, settings: Settings<'_>) {
        for line in self.lines(settings, Instant::now()) {
            if !write_line_if_writable(&line) {
                // The line may have been about a stand-in.
                settings.forget_stand_ins();
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
        if refusal.reason == Counter::Accepted {
            return self.stand_in_line(settings, refusal, now);
        }
        let explained = Explained(refusal);
        match settings.refusal_verbosity() {
            RefusalVerbosity::Off => return None,
            RefusalVerbosity::Each => return Some(explained.line(1)),
            RefusalVerbosity::Throttled => {}
        }
        let state = self.reasons.get_mut(refusal.reason as usize)?;
        let is_throttled = state.logged_at.is_some_and(|at| now < at + LOG_INTERVAL);
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

    /// The line for a client that is shown by a stand-in. The table records each once, and only this line tells the client, so one
    /// that is left out because of [`MAX_STAND_IN_LINES`] is recorded again.
    fn stand_in_line(
        &mut self,
        settings: Settings<'_>,
        refusal: Refusal,
        now: Instant,
    ) -> Option<String> {
        let verbosity = settings.refusal_verbosity();
        let StandInLines { since, count } = &mut self.stand_ins;
        let is_first = since.is_none();
        if since.is_none_or(|since| now >= since + LOG_INTERVAL) {
            (*since, *count) = (Some(now), 0);
        }
        if verbosity == RefusalVerbosity::Off {
            return None;
        }
        if verbosity == RefusalVerbosity::Throttled && *count >= MAX_STAND_IN_LINES {
            if let IpAddr::V6(client) = refusal.peer.ip() {
                settings.forget_stand_in(client);
            }
            return None;
        }
        *count += 1;
        Some(Explained(refusal).stand_in_line(is_first))
    }
}

/// The lines about stand-ins in [`LOG_INTERVAL`], without `-v`.
const MAX_STAND_IN_LINES: usize = 100;
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
        let (mut log, start) = (RefusalLog::new(settings), Instant::now());
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
    fn each_stand_in_is_logged_once_and_not_too_many_in_an_interval() {
        let memory = memory();
        let settings = Table::new(&memory).expect("a table").settings();
        settings.set_refusal_verbosity(RefusalVerbosity::Throttled);
        let (mut log, start) = (RefusalLog::new(settings), Instant::now());
        let mut count_at = |seconds| {
            let peer = "192.0.2.10:4711".parse().expect("an address");
            for network in 0..110 {
                let client = format!("[2001:db8:0:{network:x}::7]:4711");
                let client = client.parse().expect("an address");
                settings.record_stand_in(peer, client, || 443);
            }
            log.lines(settings, start + Duration::from_secs(seconds))
                .len()
        };
        assert_eq!([0, 10, 20].map(&mut count_at), [100, 10, 0]);
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
            let mut log = RefusalLog::new(settings);
            settings.record_refusal(refusal(Counter::Closed));
            settings.record_refusal(refusal(Counter::Closed));
            let logged = log.lines(settings, Instant::now());
            assert_eq!(logged.len(), lines, "{verbosity:?}: {logged:?}");
        }
    }
}
