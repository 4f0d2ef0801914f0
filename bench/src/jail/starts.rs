//! The case `start`: a jail is made, runs `true`, and is removed.

use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::resource::{UsageWho, getrusage};
use rustix::io::Errno;
use rustix::process::{WaitOptions, wait};

use crate::compare::measurement::{Measurement, Metric};
use crate::host::background_load::BackgroundMonitor;
use crate::jail::cases::{START, START_CPU};
use crate::jail::contestants::{JailContestant, JailSetup};

/// Starts jails one after the other. The time ends when the command exits; the CPU time includes the jail's processes that
/// exit later.
pub(super) fn measure(
    contestant: &JailContestant,
    setup: &JailSetup,
    count: u32,
) -> Result<Measurement> {
    let monitor = BackgroundMonitor::start()?;
    let cpu_before = exited_cpu()?;
    let mut elapsed = Duration::ZERO;
    for _ in 0..count {
        elapsed += start_once(contestant, setup)?;
    }
    let cpu = exited_cpu()? - cpu_before;
    let mean_millis = |total: Duration| 1000.0 * total.as_secs_f64() / f64::from(count);
    Ok(Measurement {
        observed: None,
        background: monitor.finish_with(cpu)?,
        metrics: vec![
            Metric::new(START, mean_millis(elapsed)),
            Metric::new(START_CPU, mean_millis(cpu)),
        ],
    })
}

/// Starts a jail, waits until all its processes have exited, and returns how long the command ran.
pub(super) fn start_once(contestant: &JailContestant, setup: &JailSetup) -> Result<Duration> {
    let mut command = contestant.command(setup, &["/usr/bin/true"]);
    command.stdin(Stdio::null());
    let start = Instant::now();
    let status = command.status();
    let elapsed = start.elapsed();
    let status = status.with_context(|| format!("run {}", contestant.program.display()))?;
    ensure!(status.success(), "{command:?}: {status}");
    // This is the first process of its namespace: processes whose parent has exited become its children.
    loop {
        match wait(WaitOptions::empty()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(Errno::CHILD) => return Ok(elapsed),
            Err(error) => return Err(error).context("wait"),
        }
    }
}

/// The CPU time of the children that have exited, with their children.
fn exited_cpu() -> Result<Duration> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).context("getrusage")?;
    let micros = [usage.user_time(), usage.system_time()]
        .map(|time| time.tv_sec() * 1_000_000 + time.tv_usec());
    Ok(Duration::from_micros(micros.iter().sum::<i64>() as u64))
}
