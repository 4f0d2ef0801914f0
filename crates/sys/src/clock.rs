//! The kernel's own clock.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// CLOCK_MONOTONIC_COARSE: the time of the last tick, as programs in the kernel write it down for next to nothing
/// (`bpf_ktime_get_coarse_ns`, since Linux 5.11). It is some milliseconds behind CLOCK_MONOTONIC at most.
pub fn coarse_monotonic() -> Duration {
    let now = clock_gettime(ClockId::MonotonicCoarse);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec as u32)
}
