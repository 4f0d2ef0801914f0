//! The kernel's counters of one flow.

use std::time::Duration;

use peername_sys::clock;

/// The kernel's counters of one flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Datagrams to the backend.
    pub requests: u64,
    /// Payload bytes of the requests.
    pub request_bytes: u64,
    /// Datagrams to the balancer.
    pub replies: u64,
    /// Payload bytes of the replies, without the header that was prepended.
    pub reply_bytes: u64,
    /// When the last request or reply arrived, by CLOCK_MONOTONIC, to the tick of the kernel's timer. Zero for never.
    pub last_used: Duration,
}

impl Usage {
    /// The time since the kernel last carried a datagram of the flow; `None` if it never did.
    pub fn idle_time(&self) -> Option<Duration> {
        (!self.last_used.is_zero())
            .then(|| clock::coarse_monotonic().saturating_sub(self.last_used))
    }
}
