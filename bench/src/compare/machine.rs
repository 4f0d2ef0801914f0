//! The description of the machine in tables and raw results.

use std::fs;

/// Describes kernel, congestion control, cores and processor.
pub(crate) fn describe_machine() -> String {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let cpus = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpus
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let model = model.map_or("unknown processor", |(_, model)| model);
    let congestion = fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control");
    let congestion = congestion.unwrap_or_default();
    format!(
        "kernel {}, TCP by {}, {cores} cores, {model}",
        release.trim(),
        congestion.trim()
    )
}
