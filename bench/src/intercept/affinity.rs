//! Who runs where: the proxy has a processor for itself, all else shares another.
//!
//! So its CPU time is not that of a processor whose caches generator and origin have just filled, and
//! every contestant has one worker. Programs that ask how many processors there are see one.

use anyhow::{Context, Result};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The processor that the proxy has to itself, and the one for the rest; the same where there is but one.
#[derive(Clone, Copy)]
pub(crate) struct Places {
    proxy: usize,
    rest: usize,
}

impl Places {
    /// The first two that this process may use.
    ///
    /// # Errors
    /// sched_getaffinity(2) failed.
    pub(crate) fn find() -> Result<Self> {
        let set = sched_getaffinity(None).context("sched_getaffinity")?;
        let mut allowed = (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu));
        let proxy = allowed.next().context("no processor to run on")?;
        let rest = allowed.next().unwrap_or(proxy);
        Ok(Self { proxy, rest })
    }

    /// Moves this thread, and whatever it starts from now on, away from the proxy's place.
    ///
    /// # Errors
    /// sched_setaffinity(2) failed.
    pub(crate) fn take_rest(self) -> Result<()> {
        take(self.rest)
    }

    /// Calls `start` where the proxy shall run: a process has its parent's place.
    ///
    /// # Errors
    /// sched_setaffinity(2) failed, or those of `start`.
    pub(crate) fn start_proxy<T>(self, start: impl FnOnce() -> Result<T>) -> Result<T> {
        take(self.proxy)?;
        let started = start();
        take(self.rest)?;
        started
    }
}

/// For the raw figures.
///
/// # Errors
/// As [`Places::find`].
pub(crate) fn describe() -> Result<String> {
    let Places { proxy, rest } = Places::find()?;
    Ok(format!(
        "proxy on processor {proxy}, generator and origin on {rest}, one worker each"
    ))
}

fn take(cpu: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).with_context(|| format!("sched_setaffinity to processor {cpu}"))
}
