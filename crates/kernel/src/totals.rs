//! The kernel's counters over all flows.

use crate::layout::{TOTAL_FAILED_REPLIES, TOTAL_FAILED_REQUESTS, TOTAL_REPLIES, TOTAL_REQUESTS};

/// The kernel's counters over all flows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Datagrams to backends.
    pub requests: u64,
    /// Datagrams to balancers.
    pub replies: u64,
    /// Requests dropped because a packet could not be changed, for lack of memory.
    pub failed_requests: u64,
    /// Replies dropped because a packet could not be changed, for lack of memory.
    pub failed_replies: u64,
}

impl Totals {
    /// Reads all counters by their index, or none: a missing value must not count as zero.
    pub(crate) fn read(counter: impl Fn(u32) -> Option<u64>) -> Option<Self> {
        Some(Self {
            requests: counter(TOTAL_REQUESTS)?,
            replies: counter(TOTAL_REPLIES)?,
            failed_requests: counter(TOTAL_FAILED_REQUESTS)?,
            failed_replies: counter(TOTAL_FAILED_REPLIES)?,
        })
    }

    /// Replaces the values and returns by how much each has grown. They never shrink.
    pub(crate) fn advance_to(&mut self, now: Self) -> Self {
        let before = std::mem::replace(self, now);
        Self {
            requests: now.requests - before.requests,
            replies: now.replies - before.replies,
            failed_requests: now.failed_requests - before.failed_requests,
            failed_replies: now.failed_replies - before.failed_replies,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_that_could_not_be_read_are_in_the_next_report() {
        let mut reported = Totals::default();
        let mut new_requests = |counter: fn(u32) -> Option<u64>| {
            Totals::read(counter).map(|now| reported.advance_to(now).requests)
        };
        assert_eq!(new_requests(|_| Some(5)), Some(5));
        assert_eq!(new_requests(|_| None), None);
        assert_eq!(new_requests(|_| Some(7)), Some(2));
    }
}
