//! The counters and gauges of a table as values, read from its memory without mapping it. They can be summed.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::gauge::Gauge;
use crate::layout::FIXED_WORDS;
use crate::settings::{Counter, Settings, Word};

/// The values of the counters and gauges of a table, or of several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts([u64; FIXED_WORDS]);

impl Counts {
    /// The number of bytes to read from the beginning of a table's memory.
    pub const SIZE: usize = FIXED_WORDS * size_of::<u64>();

    /// All zero.
    pub const NONE: Self = Self([0; FIXED_WORDS]);

    /// Reads the counters and gauges from the first bytes of a table's memory. The settings among them are skipped.
    pub fn from_bytes(bytes: &[u8; Self::SIZE]) -> Self {
        let (words, _) = bytes.as_chunks();
        let mut fixed_words = Self::NONE;
        for (value, word) in fixed_words.0.iter_mut().zip(words) {
            *value = u64::from_ne_bytes(*word);
        }
        let mut counts = Self::NONE;
        counts.add_counters(&fixed_words);
        counts.add_gauges(&fixed_words);
        counts
    }

    /// Adds the counters of a table.
    pub fn add_counters(&mut self, other: &Self) {
        let counters = Counter::ALL.into_iter().map(Settings::counter_index);
        self.add(other, counters);
    }

    /// Adds the gauges of a table, and the number of its entries.
    pub fn add_gauges(&mut self, other: &Self) {
        let gauges = Gauge::ALL.into_iter().map(Settings::gauge_index);
        self.add(other, gauges.chain([Word::Used as usize]));
    }

    fn add(&mut self, other: &Self, indices: impl Iterator<Item = usize>) {
        for index in indices {
            if let (Some(sum), Some(value)) = (self.0.get_mut(index), other.0.get(index)) {
                *sum = sum.saturating_add(*value);
            }
        }
    }
}

impl Settings<'_> {
    /// Stores these values in place of the table's own.
    pub fn store_counts(self, counts: &Counts) {
        let counters = Counter::ALL.into_iter().map(Self::counter_index);
        let gauges = Gauge::ALL.into_iter().map(Self::gauge_index);
        for index in counters.chain(gauges).chain([Word::Used as usize]) {
            let word: Option<&AtomicU64> = self.0.fixed.get(index);
            if let (Some(word), Some(value)) = (word, counts.0.get(index)) {
                word.store(*value, Ordering::Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;
    use crate::{Table, zeroed_memory};

    #[test]
    fn sum_has_the_counters_and_gauges_and_nothing_else() {
        let (memory, sum) = (zeroed_memory(64), zeroed_memory(64));
        let settings = Table::new(&memory).unwrap().settings();
        settings.count(Counter::Accepted);
        settings.set_gauge(Gauge::PendingHeaders, 3);
        let bytes: Vec<u8> = memory
            .iter()
            .flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes())
            .collect();
        let counts = Counts::from_bytes(bytes.first_chunk().unwrap());
        let mut total = Counts::NONE;
        total.add_counters(&counts);
        total.add_counters(&counts);
        total.add_gauges(&counts);
        let summed = Table::new(&sum).unwrap().settings();
        summed.store_counts(&total);
        assert_eq!(summed.counter(Counter::Accepted), 2);
        assert_eq!(summed.counter(Counter::Late), 0);
        assert_eq!(summed.gauge(Gauge::PendingHeaders), 3);
        let written = sum.iter().filter(|word| word.load(Ordering::Relaxed) != 0);
        assert_eq!(written.count(), 2);
    }
}
