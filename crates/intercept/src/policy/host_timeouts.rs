//! Timeouts of single hosts (`--host-idle-timeout`, `--host-answer-timeout`).

use std::time::Duration;

use super::passthrough::HostPattern;
use crate::host::Host;

/// A timeout for the hosts of a pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostTimeout {
    /// The hosts.
    pub hosts: HostPattern,
    /// Their timeout.
    pub limit: Duration,
}

/// A list of timeouts, of which the first one applies.
#[derive(Clone, Debug, Default)]
pub struct HostTimeouts(Vec<HostTimeout>);

impl HostTimeouts {
    /// A list in this order.
    pub fn new(timeouts: Vec<HostTimeout>) -> Self {
        Self(timeouts)
    }

    /// The timeout of this host; `None` if no pattern is for it.
    #[must_use]
    pub fn get(&self, host: &Host) -> Option<Duration> {
        let timeout = self.0.iter().find(|timeout| timeout.hosts.includes(host));
        timeout.map(|timeout| timeout.limit)
    }

    /// The shortest one.
    pub(crate) fn shortest(&self) -> Option<Duration> {
        self.0.iter().map(|timeout| timeout.limit).min()
    }
}
