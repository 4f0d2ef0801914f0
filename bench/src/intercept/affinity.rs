//! CPU affinity: the proxy has a processor to itself, all other processes share another.
//!
//! So generator and origin do not evict its data from the caches of its processor, and every contestant has one worker.
//! Programs that query the number of processors see one.

use anyhow::{Context, Result};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The processor of the proxy, and the one of all other processes; the same if there is only one.
#[derive(Clone, Copy)]
pub(crate) struct Processors {
    proxy: usize,
    rest: usize,
}

impl Processors {
    /// Selects the first two processors that this process may use.
    pub(crate) fn select() -> Result<Self> {
        let set = sched_getaffinity(None).context("sched_getaffinity")?;
        let mut allowed = (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu));
        let proxy = allowed.next().context("no processor to run on")?;
        let rest = allowed.next().unwrap_or(proxy);
        Ok(Self { proxy, rest })
    }

    /// Moves this thread, and the processes that it starts from now on, to the other processor.
    pub(crate) fn move_to_rest(self) -> Result<()> {
        move_to(self.rest)
    }

    /// Calls `start` on the proxy's processor: a process inherits its parent's affinity.
    pub(crate) fn start_on_proxy_processor<T>(
        self,
        start: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        move_to(self.proxy)?;
        let started = start();
        move_to(self.rest)?;
        started
    }
}

/// Describes the placement, for the raw results.
pub(crate) fn describe() -> Result<String> {
    let Processors { proxy, rest } = Processors::select()?;
    Ok(format!(
        "proxy on processor {proxy}, generator and origin on {rest}, one worker each"
    ))
}

fn move_to(cpu: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).with_context(|| format!("sched_setaffinity to processor {cpu}"))
}
