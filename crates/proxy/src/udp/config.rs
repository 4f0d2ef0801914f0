//! The UDP settings of a proxy or forwarder.

use std::time::Duration;

use super::dialect::Dialect;

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
