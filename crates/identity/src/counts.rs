//! The counters and gauges of a table as values, read from its memory without mapping it. They can be summed.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::gauge::Gauge;
use crate::layout::FIXED_WORDS;
use crate::settings::{Counter, Settings};

/// The values of the counters and gauges of a table, or of several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts([u64; FIXED_WORDS]);

impl Counts {
    /// How many bytes at the beginning of a table's memory to read.
    pub const SIZE: usize = FIXED_WORDS * size_of::<u64>();

    /// All zero.
    pub const NONE: Self = Self([0; FIXED_WORDS]);

    /// Those in the first bytes of a table's memory, without its other words.
    pub fn from_bytes(bytes: &[u8; Self::SIZE]) -> Self {
        let (words, _) = bytes.as_chunks();
        let mut all = Self([0; FIXED_WORDS]);
        for (value, word) in all.0.iter_mut().zip(words) {
            *value = u64::from_ne_bytes(*word);
        }
        let mut counts = Self::NONE;
        counts.add_counters(&all);
        counts.add_gauges(&all);
        counts
    }

    /// Adds the counters of a table.
    pub fn add_counters(&mut self, other: &Self) {
        let counters = Counter::ALL.into_iter().map(Settings::place_of_counter);
        self.add(other, counters);
    }

    /// Adds the gauges of a table, and the number of its entries.
    pub fn add_gauges(&mut self, other: &Self) {
        let gauges = Gauge::ALL.into_iter().map(Settings::place_of_gauge);
        self.add(other, gauges.chain([Settings::PLACE_OF_USED]));
    }

    fn add(&mut self, other: &Self, places: impl Iterator<Item = usize>) {
        for place in places {
            if let (Some(sum), Some(value)) = (self.0.get_mut(place), other.0.get(place)) {
                *sum = sum.saturating_add(*value);
            }
        }
    }
}

impl Settings<'_> {
    /// Stores these values in place of the table's own.
    pub fn store_counts(self, counts: &Counts) {
        let counters = Counter::ALL.into_iter().map(Self::place_of_counter);
        let gauges = Gauge::ALL.into_iter().map(Self::place_of_gauge);
        for place in counters.chain(gauges).chain([Self::PLACE_OF_USED]) {
            let word: Option<&AtomicU64> = self.0.fixed.get(place);
            if let (Some(word), Some(value)) = (word, counts.0.get(place)) {
                word.store(*value, Ordering::Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;
    use crate::Table;

    fn memory() -> Vec<AtomicU64> {
        let words = 0..Table::size(64) / 8;
        words.map(|_| AtomicU64::new(0)).collect()
    }

    #[test]
    fn sum_has_the_counters_of_all_and_nothing_else() {
        let (one, sum) = (memory(), memory());
        let settings = Table::new(&one).unwrap().settings();
        settings.count(Counter::Accepted);
        settings.set_gauge(Gauge::PendingHeaders, 3);
        let bytes: Vec<u8> = one
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
        assert_eq!(summed.counted(Counter::Accepted), 2);
        assert_eq!(summed.counted(Counter::Late), 0);
        assert_eq!(summed.gauge(Gauge::PendingHeaders), 3);
        let written = sum.iter().filter(|word| word.load(Ordering::Relaxed) != 0);
        assert_eq!(written.count(), 2);
    }
}
