//! CPU time of the machine, from /proc/stat.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};

use super::procfs::ticks_to_duration;

/// The busy time of all processors since boot, to the clock tick. Includes time that a hypervisor gave to other guests,
/// as it was not available either.
pub(crate) fn busy_time() -> Result<Duration> {
    // user, nice, system, idle, iowait, irq, softirq, steal; guests are part of user.
    sum_fields(&[0, 1, 2, 5, 6, 7])
}

/// The part of [`busy_time`] that a hypervisor gave to other guests.
pub(crate) fn stolen_time() -> Result<Duration> {
    sum_fields(&[7])
}

/// Sums fields of the line for all processors; fields are counted from 0.
fn sum_fields(wanted: &[usize]) -> Result<Duration> {
    let text = fs::read_to_string("/proc/stat").context("read /proc/stat")?;
    let line = text.lines().find_map(|line| line.strip_prefix("cpu "));
    let fields = line
        .context("/proc/stat has no cpu line")?
        .split_whitespace();
    let fields: Vec<_> = fields
        .map(str::parse::<u64>)
        .collect::<Result<_, _>>()
        .context("the cpu line of /proc/stat")?;
    let ticks = wanted.iter().filter_map(|&index| fields.get(index)).sum();
    Ok(ticks_to_duration(ticks))
}

/// The number of processors in [`busy_time`], whether or not this process may use them all.
pub(crate) fn processor_count() -> Result<u32> {
    let text = fs::read_to_string("/proc/stat").context("read /proc/stat")?;
    let names = text.lines().filter_map(|line| line.strip_prefix("cpu"));
    Ok(names
        .filter(|name| name.starts_with(|first: char| first.is_ascii_digit()))
        .count() as u32)
}
