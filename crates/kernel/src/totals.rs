//! The kernel's counters over all flows.

use std::mem;

/// What a counter counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Total {
    /// Datagrams to backends: dropped for this reason, or sent on.
    Requests(Option<&'static str>),
    /// Datagrams to balancers, likewise.
    Replies(Option<&'static str>),
}

/// The values of the counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals([u64; TOTALS.len()]);

impl Totals {
    /// Reads all counters by their index, or none: a missing value must not count as zero.
    pub(crate) fn read(counter: impl Fn(u32) -> Option<u64>) -> Option<Self> {
        let mut values = Self::default();
        for (index, value) in (0..).zip(&mut values.0) {
            *value = counter(index)?;
        }
        Some(values)
    }

    /// Replaces the values and returns by how much each has grown. They never shrink.
    pub(crate) fn advance_to(&mut self, now: Self) -> Self {
        let mut grown = now;
        for (value, before) in grown.0.iter_mut().zip(mem::replace(self, now).0) {
            *value -= before;
        }
        grown
    }

    /// The counters that are not zero, with their values.
    pub fn nonzero(self) -> impl Iterator<Item = (Total, u64)> {
        TOTALS
            .into_iter()
            .zip(self.0)
            .filter(|(_, value)| *value > 0)
    }
}

/// The counters, in the order of their indices in `bpf/udp.h`.
const TOTALS: [Total; 4] = [
    Total::Requests(None),
    Total::Replies(None),
    Total::Requests(Some(NO_MEMORY)),
    Total::Replies(Some(NO_MEMORY)),
];
/// The packet could not be changed, for lack of memory.
const NO_MEMORY: &str = "kernel";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_that_could_not_be_read_are_in_the_next_report() {
        let mut reported = Totals::default();
        let mut new_counts = |counter: fn(u32) -> Option<u64>| {
            let grown = reported.advance_to(Totals::read(counter)?);
            Some(grown.nonzero().map(|(_, value)| value).collect::<Vec<_>>())
        };
        assert_eq!(new_counts(|index| Some(index.into())), Some(vec![1, 2, 3]));
        assert_eq!(new_counts(|_| None), None);
        assert_eq!(
            new_counts(|index| Some(u64::from(index) + 2)),
            Some(vec![2; 4])
        );
    }

    #[test]
    fn program_has_a_counter_for_each_row() {
        let count = format!("#define TOTALS {}\n", TOTALS.len());
        assert!(include_str!("../bpf/udp.h").ends_with(&count));
    }
}
