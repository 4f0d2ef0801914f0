//! The UDP settings of a proxy or forwarder.

use std::time::Duration;

use super::dialect::Dialect;
use super::lru_table::TableLimits;

/// The UDP settings of a proxy or forwarder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpConfig {
    /// Which datagrams have a header, and in which format.
    pub dialect: Dialect,
    /// Idle timeout: a session on which no datagram has moved for so long is closed.
    pub close_after: Duration,
    /// Limit of open sessions, over all workers. Each takes a file descriptor.
    pub sessions: usize,
    /// Limit of open sessions of one balancer, or of one client of a forwarder, over all workers. Two thirds of `sessions` if
    /// that is less: one that takes all it can must leave sessions to the others.
    pub sessions_per_balancer: usize,
}

impl UdpConfig {
    /// The limits of one of so many workers: its share of the sessions, and the idle timeouts.
    pub(super) fn worker_limits(&self, workers: usize) -> TableLimits {
        let share = |limit: usize| limit.div_ceil(workers.max(1)).max(1);
        let entries = share(self.sessions);
        TableLimits {
            entries,
            per_balancer: share(self.sessions_per_balancer)
                .min(TableLimits::balancer_share(entries)),
            idle: self.close_after,
            unanswered: self.close_after.min(UNANSWERED_TIMEOUT),
        }
    }
}

impl Default for UdpConfig {
    fn default() -> Self {
        Self {
            dialect: Dialect::default(),
            close_after: Duration::from_secs(60),
            sessions: 65_536,
            sessions_per_balancer: 4096,
        }
    }
}

/// Upper limit of the idle timeout of sessions that were never answered, which may be part of a flood.
const UNANSWERED_TIMEOUT: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;

    /// File descriptors may leave fewer sessions in all than one balancer could have.
    #[test]
    fn balancer_that_takes_all_it_can_leaves_sessions_for_others() {
        for (sessions, workers, expected) in [
            (65_536, 1, (65_536, 4096)),
            (3000, 1, (3000, 2000)),
            (3000, 4, (750, 500)),
            (1, 4, (1, 1)),
        ] {
            let config = UdpConfig {
                sessions,
                ..UdpConfig::default()
            };
            let limits = config.worker_limits(workers);
            assert_eq!((limits.entries, limits.per_balancer), expected);
        }
    }
}
