//! The options of every long-running command that concern the whole process. They are also the keys at the top of the
//! configuration file.

pub mod confinement;

use std::num::NonZeroUsize;
use std::sync::OnceLock;
use std::thread::available_parallelism;
use std::time::Duration;

use anyhow::ensure;

use crate::admin::AdminArgs;
use crate::logging::LogArgs;
use crate::options::heading;
use crate::signals::drain::DrainLimits;
use crate::value;
use confinement::SandboxArgs;

/// Options of the process, independent of its listeners.
#[derive(Clone, Debug, PartialEq, clap::Args)]
#[command(next_help_heading = heading::OPERATION)]
#[group(skip)]
pub struct Process {
    #[command(flatten)]
    /// The admin endpoint.
    pub admin: AdminArgs,
    /// The time for which open connections are drained after SIGTERM; a second SIGTERM closes them
    // Long enough for most transfers; systemd sends SIGKILL after 90 s by default.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = value::duration)]
    drain: Duration,
    /// The time after SIGTERM for which clients are still accepted, while /readyz is 503 already
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "0s",
        value_parser = value::duration,
        hide_short_help = true
    )]
    drain_delay: Duration,
    /// The time for which the old process of an upgrade keeps its open connections; SIGTERM shortens it to --drain
    // Long, because the old process delays nothing and long transfers should end by themselves; finite, because an idle
    // connection would keep it for days.
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "1h",
        value_parser = value::duration,
        hide_short_help = true
    )]
    upgrade_drain: Duration,
    /// Time limit for the new process of an upgrade (SIGUSR2) to become ready
    // Longer than resolving a name takes if the name server does not answer at first.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = value::duration, help_heading = heading::TUNING)]
    pub(crate) upgrade_timeout: Duration,
    /// Event loops, each with sockets of its own [default: one per core; forward: 1]
    #[arg(long, alias = "listeners", value_name = "N", value_parser = value::number(1, MAX_WORKERS), help_heading = heading::TUNING)]
    workers: Option<usize>,
    #[command(flatten)]
    /// The confinement.
    pub sandbox: SandboxArgs,
    #[command(flatten)]
    /// The log.
    pub logging: LogArgs,
}

impl Process {
    /// The number of workers; by default one per core.
    pub fn workers(&self) -> usize {
        self.workers.unwrap_or_else(default_workers)
    }

    /// Sets the number of workers, unless it was given.
    pub fn set_default_workers(&mut self, workers: usize) {
        self.workers.get_or_insert_with(|| workers.min(MAX_WORKERS));
    }

    /// Refuses changes of keys that can't change while the process runs.
    pub fn check_reload(&self, new: &Self) -> anyhow::Result<()> {
        refuse_changes(self.changes_of_fixed_keys(new))
    }

    /// The keys that differ, although a reload can't change them. If `self` has the defaults, these are the keys that are set.
    pub fn changes_of_fixed_keys(&self, new: &Self) -> Vec<&'static str> {
        let fixed = [
            ("workers", new.workers != self.workers),
            ("admin", new.admin.admin != self.admin.admin),
            ("admin-host", new.admin.admin_host != self.admin.admin_host),
            ("no-sandbox", new.sandbox != self.sandbox),
            (
                "log-format",
                new.logging.log_format != self.logging.log_format,
            ),
            ("verbose", new.logging.verbose != self.logging.verbose),
            ("quiet", new.logging.quiet != self.logging.quiet),
        ];
        changed_keys(fixed)
    }

    /// The time that open connections have at the end of the process.
    pub fn drain_limits(&self) -> DrainLimits {
        DrainLimits {
            delay: self.drain_delay,
            stop: self.drain,
            upgrade: self.upgrade_drain,
        }
    }
}

/// The default of `--workers`: one per core. The number is read once, because a confined process can't read its cgroup.
pub fn default_workers() -> usize {
    static CORES: OnceLock<usize> = OnceLock::new();
    *CORES.get_or_init(|| available_parallelism().map_or(1, NonZeroUsize::get))
}

const MAX_WORKERS: usize = 1024;

/// Returns those of the keys that have changed: a key is paired with whether it has.
pub fn changed_keys<const N: usize>(keys: [(&'static str, bool); N]) -> Vec<&'static str> {
    keys.into_iter()
        .filter_map(|(key, has_changed)| has_changed.then_some(key))
        .collect()
}

/// Refuses a reload that changes these keys, if there are any.
pub fn refuse_changes(keys: Vec<&'static str>) -> anyhow::Result<()> {
    ensure!(
        keys.is_empty(),
        "{} can't change without a restart or an upgrade",
        keys.join(", ")
    );
    Ok(())
}
