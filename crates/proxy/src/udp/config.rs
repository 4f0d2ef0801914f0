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
    /// Limit of open sessions of one balancer's address, over all workers.
    pub sessions_per_balancer: usize,
}

impl UdpConfig {
    /// The limits of one of so many workers: its share of the sessions, and the idle timeouts.
    pub(super) fn worker_limits(&self, workers: usize) -> TableLimits {
        let share = |limit: usize| limit.div_ceil(workers.max(1)).max(1);
        TableLimits {
            entries: share(self.sessions),
            per_balancer: share(self.sessions_per_balancer),
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
