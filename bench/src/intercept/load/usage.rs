//! Time and CPU time of a measured interval.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::host::procfs::{self, CpuMeter, ProcessTree};

/// Measures time and CPU time of the measured interval.
pub(super) struct UsageMeter {
    start: Instant,
    own: Duration,
    watch: Option<CpuMeter>,
}

/// What the measured interval took.
pub(super) struct LoadUsage {
    pub(super) elapsed: Duration,
    /// CPU time of the generator.
    pub(super) own: Duration,
    /// CPU time of the watched process tree.
    pub(super) cpu: Option<Duration>,
}

impl UsageMeter {
    pub(super) fn start(watch: Option<ProcessTree>) -> Result<Self> {
        Ok(Self {
            watch: watch.map(CpuMeter::start).transpose()?,
            own: procfs::current_thread_cpu()?,
            start: Instant::now(),
        })
    }

    pub(super) fn stop(self) -> Result<LoadUsage> {
        Ok(LoadUsage {
            elapsed: self.start.elapsed(),
            own: procfs::current_thread_cpu()?.saturating_sub(self.own),
            cpu: self.watch.map(CpuMeter::stop).transpose()?,
        })
    }
}
