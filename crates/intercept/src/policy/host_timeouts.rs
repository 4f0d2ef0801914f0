//! Timeouts of single hosts (`--host-idle-timeout`, `--host-answer-timeout`).

use std::time::Duration;

use super::host_pattern::HostPattern;
use crate::host::Host;

/// A timeout for the hosts of a pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostTimeout {
    /// The hosts.
    pub hosts: HostPattern,
    /// The timeout for these hosts.
    pub limit: Duration,
}

/// A list of timeouts. For a host, the first whose pattern includes it applies.
#[derive(Clone, Debug, Default)]
pub struct HostTimeouts(Vec<HostTimeout>);

impl HostTimeouts {
    /// Creates a list of these timeouts, in this order.
    pub fn new(timeouts: Vec<HostTimeout>) -> Self {
        Self(timeouts)
    }

    /// The timeout for this host; `None` if no pattern includes it.
    #[must_use]
    pub fn get(&self, host: &Host) -> Option<Duration> {
        self.0
            .iter()
            .find(|timeout| timeout.hosts.includes(host))
            .map(|timeout| timeout.limit)
    }

    /// The shortest timeout.
    pub(crate) fn shortest(&self) -> Option<Duration> {
        self.0.iter().map(|timeout| timeout.limit).min()
    }
}
