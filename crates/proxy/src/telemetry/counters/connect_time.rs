//! A histogram of the time that connect(2) takes, which never blocks a worker.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Counts per bucket, and the sum.
#[derive(Debug, Default)]
pub(super) struct ConnectTime {
    buckets: [AtomicU64; BOUNDS.len() + 1],
    sum_us: AtomicU64,
}

/// The histogram at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConnectTimeSnapshot {
    /// For each bucket: its upper bound, and the number of connections that took at most that long but longer than the
    /// previous bound. The last bucket has no bound.
    pub buckets: Vec<(Option<Duration>, u64)>,
    /// The sum of all times.
    pub sum: Duration,
}

impl ConnectTime {
    pub(super) fn observe(&self, time: Duration) {
        let index = BOUNDS.partition_point(|bound| *bound < time);
        if let Some(bucket) = self.buckets.get(index) {
            bucket.fetch_add(1, Relaxed);
        }
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.sum_us.fetch_add(micros, Relaxed);
    }

    pub(super) fn snapshot(&self) -> ConnectTimeSnapshot {
        let bounds = BOUNDS.iter().copied().map(Some).chain([None]);
        let counts = self.buckets.iter().map(|bucket| bucket.load(Relaxed));
        ConnectTimeSnapshot {
            buckets: bounds.zip(counts).collect(),
            sum: Duration::from_micros(self.sum_us.load(Relaxed)),
        }
    }
}

/// From loopback to the retries of a lost SYN, which come after 1 s and 3 s.
const BOUNDS: [Duration; 12] = [
    Duration::from_micros(100),
    Duration::from_micros(250),
    Duration::from_micros(500),
    Duration::from_millis(1),
    Duration::from_micros(2500),
    Duration::from_millis(5),
    Duration::from_millis(10),
    Duration::from_millis(50),
    Duration::from_millis(250),
    Duration::from_millis(1000),
    Duration::from_millis(2500),
    Duration::from_millis(5000),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_time_is_counted_in_the_first_bucket_that_holds_it() {
        let histogram = ConnectTime::default();
        for micros in [0, 100, 101, 5_000_000, 5_000_001] {
            histogram.observe(Duration::from_micros(micros));
        }
        let snapshot = histogram.snapshot();
        let counts: Vec<_> = snapshot.buckets.iter().map(|(_, count)| *count).collect();
        assert_eq!(counts, [2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1]);
        assert_eq!(snapshot.buckets.last().unwrap().0, None);
        assert_eq!(snapshot.sum, Duration::from_micros(10_000_202));
    }
}
