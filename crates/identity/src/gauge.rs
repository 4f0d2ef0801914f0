//! The supervisor's gauges and the verbosity of its refusal log: words that it shares with the admin endpoint.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::layout::FIXED_WORDS;
use crate::settings::{Counter, Settings, Word};

/// A number that the supervisor stores, with its offset from the first gauge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gauge {
    /// Connections that wait at the header waiter for the rest of their header.
    PendingHeaders,
    /// Connections with a complete header that wait for the program's next accept(2).
    ReadyConnections,
    /// Calls of accept(2) that wait at the supervisor for a connection.
    PendingAccepts,
    /// Containers of the agent.
    Containers,
    /// 1 while a list of clients can't be read and the previous one stays in force; of the agent the number of such containers.
    StaleLists,
}

impl Gauge {
    /// All gauges.
    pub const ALL: [Self; 5] = [
        Self::PendingHeaders,
        Self::ReadyConnections,
        Self::PendingAccepts,
        Self::Containers,
        Self::StaleLists,
    ];
}

/// The refusals that the supervisor logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalVerbosity {
    /// None.
    Off,
    /// The first of each reason in an interval, with the number of refusals.
    Throttled,
    /// Each.
    Each,
}

impl<'m> Settings<'m> {
    /// Stores a gauge.
    pub fn set_gauge(self, gauge: Gauge, value: u64) {
        if let Some(word) = self.gauge_word(gauge) {
            word.store(value, Ordering::Relaxed);
        }
    }

    /// The value of a gauge.
    pub fn gauge(self, gauge: Gauge) -> u64 {
        let word = self.gauge_word(gauge);
        word.map_or(0, |word| word.load(Ordering::Relaxed))
    }

    /// Sets which refusals are logged from now on.
    pub fn set_refusal_verbosity(self, verbosity: RefusalVerbosity) {
        self.set(Word::RefusalVerbosity, verbosity as u64);
    }

    /// Which refusals are logged.
    pub fn refusal_verbosity(self) -> RefusalVerbosity {
        match self.get(Word::RefusalVerbosity) {
            0 => RefusalVerbosity::Off,
            1 => RefusalVerbosity::Throttled,
            _ => RefusalVerbosity::Each,
        }
    }

    /// The index of a gauge among the fixed words.
    pub(crate) fn gauge_index(gauge: Gauge) -> usize {
        FIRST_GAUGE.saturating_add(gauge as usize)
    }

    fn gauge_word(self, gauge: Gauge) -> Option<&'m AtomicU64> {
        self.0.fixed.get(Self::gauge_index(gauge))
    }
}

/// The index of the first gauge among the fixed words: behind the counters.
const FIRST_GAUGE: usize = Word::FirstCounter as usize + Counter::ALL.len();
const _: () = assert!(FIRST_GAUGE + Gauge::ALL.len() <= FIXED_WORDS);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Table, zeroed_memory};

    #[test]
    fn gauges_and_counters_do_not_overlap() {
        let memory = zeroed_memory(64);
        let settings = Table::new(&memory).unwrap().settings();
        let gauges = Gauge::ALL;
        for (value, gauge) in (10..).zip(gauges) {
            settings.set_gauge(gauge, value);
        }
        settings.set_refusal_verbosity(RefusalVerbosity::Each);
        for counter in Counter::ALL {
            settings.count(counter);
        }
        for counter in Counter::ALL {
            assert_eq!(settings.counter(counter), 1, "{counter:?}");
        }
        for (value, gauge) in (10..).zip(gauges) {
            assert_eq!(settings.gauge(gauge), value, "{gauge:?}");
        }
        assert_eq!(settings.refusal_verbosity(), RefusalVerbosity::Each);
    }
}
