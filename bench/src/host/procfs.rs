//! CPU time and memory of a process tree, from /proc.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};

/// A process and its descendants, read anew at each call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProcessTree {
    root: u32,
    without_root: bool,
}

/// CPU time used so far, by two counters. See [`Cpu::since`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cpu {
    threads: Duration,
    processes: Duration,
}

impl ProcessTree {
    pub(crate) fn of(root: u32) -> Self {
        Self {
            root,
            without_root: false,
        }
    }

    /// The descendants of this process, orphans included if it is the first process of its namespace.
    pub(crate) fn descendants_of_self() -> Self {
        Self {
            root: std::process::id(),
            without_root: true,
        }
    }

    /// User and system time of every thread.
    ///
    /// # Errors
    /// The root has exited, or /proc is not as described in proc(5).
    pub(crate) fn cpu(self) -> Result<Cpu> {
        Ok(sum_cpu(&self.processes()?))
    }

    /// The processes that are in the tree now.
    pub(crate) fn members(self) -> Result<ProcessSet> {
        let pids = self.processes()?.into_iter().map(|process| process.pid);
        Ok(ProcessSet(pids.collect()))
    }

    /// Proportional set size in bytes: private pages, and the share of each shared page. Excludes kernel memory, such as
    /// socket buffers.
    ///
    /// # Errors
    /// The root has exited, a descendant has exited meanwhile, or /proc is not as described in proc(5).
    pub(crate) fn pss(self) -> Result<u64> {
        self.processes()?
            .iter()
            .filter(|process| !process.is_dead)
            .map(|process| read_rollup(process.pid, "Pss"))
            .sum()
    }

    fn processes(self) -> Result<Vec<Process>> {
        let all: Vec<Process> = fs::read_dir("/proc")
            .context("read /proc")?
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
            .filter_map(Process::read)
            .collect();
        let root = all
            .iter()
            .find(|process| process.pid == self.root && !process.is_dead);
        let mut tree = vec![*root.with_context(|| format!("process {} has ended", self.root))?];
        let mut next = 0;
        while let Some(parent) = tree.get(next).map(|process| process.pid) {
            tree.extend(all.iter().filter(|process| process.parent == parent));
            next += 1;
        }
        if self.without_root {
            tree.remove(0);
        }
        Ok(tree)
    }
}

/// Measures the CPU time of a process tree in an interval.
pub(crate) struct CpuMeter {
    tree: ProcessTree,
    before: Cpu,
}

impl CpuMeter {
    pub(crate) fn start(tree: ProcessTree) -> Result<Self> {
        let before = tree.cpu()?;
        Ok(Self { tree, before })
    }

    pub(crate) fn stop(self) -> Result<Duration> {
        Ok(self.tree.cpu()?.since(self.before))
    }
}

/// Processes that are known by their ids, in the order in which they were found.
#[derive(Debug)]
pub(crate) struct ProcessSet(Vec<u32>);

impl ProcessSet {
    /// Removes the processes of another set.
    pub(crate) fn remove(&mut self, others: &Self) {
        self.0.retain(|pid| !others.0.contains(pid));
    }

    /// The first process with this argument after the program's name.
    pub(crate) fn find_by_first_argument(&self, argument: &str) -> Option<u32> {
        self.0.iter().copied().find(|pid| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.split(|&byte| byte == 0).nth(1) == Some(argument.as_bytes())
        })
    }

    /// As [`ProcessTree::cpu`]. Processes that have exited count as 0.
    pub(crate) fn cpu(&self) -> Cpu {
        let processes = self.0.iter().filter_map(|&pid| Process::read(pid));
        sum_cpu(&processes.collect::<Vec<_>>())
    }

    /// As [`ProcessTree::pss`].
    ///
    /// # Errors
    /// A process has exited, or /proc is not as described in proc(5).
    pub(crate) fn pss(&self) -> Result<u64> {
        self.0.iter().map(|&pid| read_rollup(pid, "Pss")).sum()
    }

    /// The part of [`pss`](Self::pss) that is not mapped from files: memory that is not shared with other jails, and that
    /// the kernel can't drop.
    pub(crate) fn anonymous(&self) -> Result<u64> {
        self.0.iter().map(|&pid| read_rollup(pid, "Pss_Anon")).sum()
    }
}

/// CPU time of the calling thread so far.
///
/// # Errors
/// The kernel does not count it (CONFIG_SCHED_INFO).
pub(crate) fn current_thread_cpu() -> Result<Duration> {
    let path = "/proc/thread-self/schedstat";
    let text = fs::read_to_string(path).with_context(|| format!("read {path}"))?;
    parse_schedstat(&text).with_context(|| format!("{path} is {text:?}"))
}

pub(super) fn ticks_to_duration(ticks: u64) -> Duration {
    Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

impl Cpu {
    /// The time used between `earlier` and `self`.
    ///
    /// The threads' counters are exact, in nanoseconds, but lose threads that have exited. The processes' counters keep
    /// those, in clock ticks. So the sum over threads is used, unless the sum over processes exceeds it by more than
    /// rounding.
    pub(crate) fn since(self, earlier: Self) -> Duration {
        let threads = self.threads.saturating_sub(earlier.threads);
        let processes = self.processes.saturating_sub(earlier.processes);
        if processes > threads + ROUNDING {
            processes
        } else {
            threads
        }
    }
}

#[derive(Clone, Copy)]
struct Process {
    pid: u32,
    parent: u32,
    cpu: Duration,
    is_dead: bool,
}

impl Process {
    /// None if the process has exited.
    fn read(pid: u32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name, in parentheses, may contain spaces and parentheses. Numbered as in proc_pid_stat(5), the
        // first field after it is field 3.
        let (_, rest) = stat.rsplit_once(')')?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
        let ticks = number(14)? + number(15)?;
        Some(Self {
            pid,
            parent: u32::try_from(number(4)?).ok()?,
            cpu: ticks_to_duration(ticks),
            is_dead: matches!(fields.first(), Some(&("Z" | "X"))),
        })
    }
}

/// Parses the first field, the time on a CPU in nanoseconds.
fn parse_schedstat(line: &str) -> Option<Duration> {
    line.split(' ')
        .next()?
        .parse()
        .ok()
        .map(Duration::from_nanos)
}

fn sum_cpu(processes: &[Process]) -> Cpu {
    let mut cpu = Cpu::default();
    for process in processes {
        cpu.processes += process.cpu;
        cpu.threads += threads_cpu(process.pid);
    }
    cpu
}

fn threads_cpu(pid: u32) -> Duration {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return Duration::ZERO;
    };
    threads
        .filter_map(|thread| fs::read_to_string(thread.ok()?.path().join("schedstat")).ok())
        .filter_map(|line| parse_schedstat(&line))
        .sum()
}

/// A field of /proc/PID/smaps_rollup, in bytes.
fn read_rollup(pid: u32, field: &str) -> Result<u64> {
    let path = format!("/proc/{pid}/smaps_rollup");
    let text = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    let kib: u64 = text
        .lines()
        .find_map(|line| {
            line.strip_prefix(field)?
                .strip_prefix(':')?
                .strip_suffix("kB")?
                .trim()
                .parse()
                .ok()
        })
        .with_context(|| format!("{path} has no {field} line"))?;
    Ok(kib * 1024)
}

/// The kernel truncates user and system time of each process to ticks of 10 ms, at both ends of the interval; this is
/// enough for a few processes.
const ROUNDING: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::Instant;

    use super::*;

    #[test]
    fn cpu_time_of_this_process_is_counted() {
        let tree = ProcessTree::of(std::process::id());
        let before = tree.cpu().unwrap();
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(50) {
            std::hint::black_box(0);
        }
        let used = tree.cpu().unwrap().since(before);
        assert!(
            used > Duration::from_millis(10),
            "50 ms of spinning cost {used:?}"
        );
    }

    #[test]
    fn children_and_their_memory_are_counted() {
        let mut child = Command::new("sh")
            .args(["-c", "sleep 5 & sleep 5; true"])
            .spawn()
            .unwrap();
        let tree = ProcessTree::of(child.id());
        let deadline = Instant::now() + Duration::from_secs(2);
        while tree.processes().unwrap().len() < 3 && Instant::now() < deadline {
            std::thread::yield_now();
        }
        let processes = tree.processes().unwrap();
        assert_eq!(processes.len(), 3, "a shell and two sleeps");
        assert!(tree.pss().unwrap() > 64 * 1024);
        for process in &processes[1..] {
            let pid = rustix::process::Pid::from_raw(process.pid as i32).unwrap();
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        }
        child.wait().unwrap();
        assert!(tree.cpu().is_err(), "a process that exited has no figures");
    }

    #[test]
    fn zombies_have_no_memory() {
        // The second program does not know the child of the first, and so does not wait for it.
        let mut parent = Command::new("sh")
            .args(["-c", "true & exec sleep 5"])
            .spawn()
            .unwrap();
        let tree = ProcessTree::of(parent.id());
        let has_zombie = || {
            tree.processes()
                .unwrap()
                .iter()
                .any(|process| process.is_dead)
        };
        let deadline = Instant::now() + Duration::from_secs(2);
        while !has_zombie() && Instant::now() < deadline {
            std::thread::yield_now();
        }
        assert!(has_zombie());
        assert!(tree.pss().unwrap() > 0);
        parent.kill().unwrap();
        parent.wait().unwrap();
    }

    #[test]
    fn ticks_are_used_only_when_threads_exited() {
        let cpu = |threads, processes| Cpu {
            threads: Duration::from_millis(threads),
            processes: Duration::from_millis(processes),
        };
        assert_eq!(
            cpu(995, 1000).since(Cpu::default()),
            Duration::from_millis(995)
        );
        assert_eq!(
            cpu(500, 1000).since(Cpu::default()),
            Duration::from_millis(1000)
        );
    }
}
