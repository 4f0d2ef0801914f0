//! Whether the machine is ours while we measure.

use std::time::{Duration, Instant};

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::procfs::{self, Cpu, ProcessTree};

/// Per cent of all processors that were not ours. See [`Neighbours`].
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Disturbance {
    /// What other programs used, and what was stolen.
    pub(crate) others: f64,
    /// What a hypervisor gave to other guests.
    pub(crate) stolen: f64,
}

/// What the rest of the machine does during a measurement: all CPU time less that of generator,
/// backend and proxy.
///
/// It changes more than rates: with a compiler beside it on two cores, HAProxy's CPU per echo was
/// 3.5 us, and 6.5 us without. Why is not settled; all three processes on one core cost less per echo
/// too, so fewer wake-ups across cores are likely to be a part.
pub(crate) struct Neighbours {
    start: Instant,
    busy: Duration,
    stolen: Duration,
    ours: Cpu,
}

impl Neighbours {
    /// # Errors
    /// /proc is not what proc(5) says.
    pub(crate) fn watch() -> Result<Self> {
        Ok(Self {
            start: Instant::now(),
            busy: procfs::busy()?,
            stolen: procfs::stolen()?,
            ours: ours()?,
        })
    }

    /// What it did since [`watch`](Self::watch).
    ///
    /// # Errors
    /// As there.
    pub(crate) fn disturbance(self) -> Result<Disturbance> {
        let ours = ours()?.since(self.ours);
        let others = procfs::busy()?
            .saturating_sub(self.busy)
            .saturating_sub(ours);
        let stolen = procfs::stolen()?.saturating_sub(self.stolen);
        let all = self.start.elapsed() * procfs::processors()?;
        let share = |part: Duration| 100.0 * part.as_secs_f64() / all.as_secs_f64();
        Ok(Disturbance {
            others: share(others),
            stolen: share(stolen),
        })
    }
}

/// Backend and proxy are children of this process.
fn ours() -> Result<Cpu> {
    ProcessTree::of(std::process::id()).cpu()
}
