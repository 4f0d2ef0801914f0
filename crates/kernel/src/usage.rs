//! What the kernel did for one flow.

use std::time::Duration;

use peername_sys::clock;

/// What the kernel did for a flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Datagrams to the backend.
    pub requests: u64,
    /// Bytes of their payload.
    pub request_octets: u64,
    /// Datagrams to the balancer.
    pub replies: u64,
    /// Bytes of their payload, without the header that was prepended.
    pub reply_octets: u64,
    /// When the last of either arrived, by CLOCK_MONOTONIC, to the tick of the kernel's timer. Zero for never.
    pub last: Duration,
}

impl Usage {
    /// How long ago the kernel last carried a datagram of the flow; `None` if it never did.
    pub fn idle(&self) -> Option<Duration> {
        (!self.last.is_zero()).then(|| clock::coarse_monotonic().saturating_sub(self.last))
    }
}
