//! Time and CPU time of a measured interval.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::host::procfs::{self, Cpu, ProcessTree};

/// Measures time and CPU time of the measured interval.
pub(super) struct UsageMeter {
    start: Instant,
    own: Duration,
    watch: Option<(ProcessTree, Cpu)>,
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
        let watch = watch.map(|tree| Ok::<_, anyhow::Error>((tree, tree.cpu()?)));
        Ok(Self {
            watch: watch.transpose()?,
            own: procfs::current_thread_cpu()?,
            start: Instant::now(),
        })
    }

    pub(super) fn stop(self) -> Result<LoadUsage> {
        let elapsed = self.start.elapsed();
        let cpu = self
            .watch
            .map(|(tree, before)| Ok::<_, anyhow::Error>(tree.cpu()?.since(before)));
        Ok(LoadUsage {
            elapsed,
            own: procfs::current_thread_cpu()?.saturating_sub(self.own),
            cpu: cpu.transpose()?,
        })
    }
}
