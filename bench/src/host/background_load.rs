//! Background load: what other programs use of the machine during a measurement.

use std::time::{Duration, Instant};

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::host::proc_stat;
use crate::host::procfs::{CpuMeter, ProcessTree};

/// The share of all processors, in per cent, that other programs had. See [`BackgroundMonitor`].
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct BackgroundLoad {
    /// What other programs used, stolen time included.
    pub(crate) others: f64,
    /// What a hypervisor gave to other guests.
    pub(crate) stolen: f64,
}

/// Measures background load: all CPU time less that of generator, backend and proxy.
///
/// Background load changes CPU figures, not only rates. With a compiler running on the same two cores, HAProxy's CPU time for
/// each echo was 3.5 us, and 6.5 us without it. The reason is not known. An echo also costs less with all three processes on
/// one core, so fewer wake-ups across cores are likely to be a part of it.
pub(crate) struct BackgroundMonitor {
    start: Instant,
    busy: Duration,
    stolen: Duration,
    /// Measures this process and its children, among them backend and proxy.
    own: CpuMeter,
}

impl BackgroundMonitor {
    /// Starts the measurement.
    pub(crate) fn start() -> Result<Self> {
        Ok(Self {
            start: Instant::now(),
            busy: proc_stat::busy_time()?,
            stolen: proc_stat::stolen_time()?,
            own: CpuMeter::start(ProcessTree::of(std::process::id()))?,
        })
    }

    /// Returns the background load since [`start`](Self::start).
    pub(crate) fn finish(self) -> Result<BackgroundLoad> {
        self.finish_with(Duration::ZERO)
    }

    /// As [`finish`](Self::finish), for an interval in which children have exited. They used `exited` of CPU time, which is no
    /// background load, and which /proc no longer shows.
    pub(crate) fn finish_with(self, exited: Duration) -> Result<BackgroundLoad> {
        let own = self.own.stop()? + exited;
        let others = proc_stat::busy_time()?
            .saturating_sub(self.busy)
            .saturating_sub(own);
        let stolen = proc_stat::stolen_time()?.saturating_sub(self.stolen);
        let all = self.start.elapsed() * proc_stat::processor_count()?;
        let share = |part: Duration| 100.0 * part.as_secs_f64() / all.as_secs_f64();
        Ok(BackgroundLoad {
            others: share(others),
            stolen: share(stolen),
        })
    }
}
