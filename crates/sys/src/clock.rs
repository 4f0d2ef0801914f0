//! The kernel's coarse clock.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// CLOCK_MONOTONIC_COARSE: the time of the last timer tick, the cheap clock of eBPF programs
/// (`bpf_ktime_get_coarse_ns`, since Linux 5.11). It is at most some milliseconds behind CLOCK_MONOTONIC.
pub fn coarse_monotonic() -> Duration {
    let now = clock_gettime(ClockId::MonotonicCoarse);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec as u32)
}
