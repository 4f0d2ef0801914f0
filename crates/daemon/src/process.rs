//! The options of every long-running command that concern the whole process. They are also the keys at the top of the
//! configuration file.

pub mod confinement;

use std::num::NonZeroUsize;
use std::sync::OnceLock;
use std::thread::available_parallelism;
use std::time::Duration;

use anyhow::ensure;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::admin::AdminArgs;
use crate::drain::DrainLimits;
use crate::logging;
use crate::value::{Number, Time};

/// Options of the process, independent of its listeners.
#[derive(Clone, Debug, Default, PartialEq, clap::Args, Deserialize, Serialize, JsonSchema)]
#[group(skip)]
#[serde(default, rename_all = "kebab-case")]
pub struct Process {
    /// Event loops, each with sockets of its own [default: one per core; forward: 1]
    #[arg(long, visible_alias = "listeners", value_name = "N")]
    pub workers: Option<Number<1, 1024>>,
    /// The time for which open connections are drained after SIGTERM; a second SIGTERM closes them [default: 30s]
    #[arg(long, value_name = "DURATION")]
    drain: Option<Time>,
    /// The time after SIGTERM for which clients are still accepted, while /readyz is 503 already [default: 0s]
    #[arg(long, value_name = "DURATION")]
    drain_delay: Option<Time>,
    /// The time for which the old process of an upgrade keeps its open connections; SIGTERM shortens it to --drain [default: 1h]
    #[arg(long, value_name = "DURATION")]
    upgrade_drain: Option<Time>,
    /// Time limit for the new process of an upgrade (SIGUSR2) to become ready [default: 30s]
    #[arg(long, value_name = "DURATION")]
    upgrade_timeout: Option<Time>,
    #[command(flatten)]
    #[serde(flatten)]
    /// The admin endpoint.
    pub admin: AdminArgs,
    #[command(flatten)]
    #[serde(flatten)]
    /// The confinement.
    pub sandbox: confinement::Args,
    #[command(flatten)]
    #[serde(flatten)]
    /// The log.
    pub logging: logging::Args,
}

impl Process {
    /// These options of the command line, and those of the file for what the command line leaves out.
    pub fn or(self, file: Self) -> Self {
        Self {
            workers: self.workers.or(file.workers),
            drain: self.drain.or(file.drain),
            drain_delay: self.drain_delay.or(file.drain_delay),
            upgrade_drain: self.upgrade_drain.or(file.upgrade_drain),
            upgrade_timeout: self.upgrade_timeout.or(file.upgrade_timeout),
            admin: self.admin.or(file.admin),
            sandbox: self.sandbox.or(file.sandbox),
            logging: self.logging.or(file.logging),
        }
    }

    /// The number of workers; by default one per core.
    pub fn workers(&self) -> usize {
        self.workers.map_or_else(default_workers, Number::get)
    }

    /// Refuses what can't change while the process runs.
    ///
    /// # Errors
    ///
    /// The key.
    pub fn check_reload(&self, new: &Self) -> anyhow::Result<()> {
        refuse_changes(self.changes_of_fixed_keys(new))
    }

    /// The keys that a reload can't change and that differ. Compared with the default, those that are set.
    pub fn changes_of_fixed_keys(&self, new: &Self) -> Vec<&'static str> {
        let fixed = [
            ("workers", new.workers == self.workers),
            ("admin, admin-host", new.admin == self.admin),
            ("no-sandbox", new.sandbox == self.sandbox),
            ("log-format, verbose, quiet", new.logging == self.logging),
        ];
        changed(fixed)
    }

    /// Sets what has a default, so that the configuration in force shows it.
    pub fn set_defaults(&mut self, workers: usize) {
        self.workers.get_or_insert_with(|| Number::clamp(workers));
        self.drain.get_or_insert(Time(DEFAULT_DRAIN));
        self.drain_delay.get_or_insert(Time(Duration::ZERO));
        self.upgrade_drain
            .get_or_insert(Time(DEFAULT_UPGRADE_DRAIN));
        self.upgrade_timeout
            .get_or_insert(Time(DEFAULT_UPGRADE_TIMEOUT));
    }

    /// Time limit for the new process of an upgrade to become ready.
    pub fn upgrade_timeout(&self) -> Duration {
        let limit = self.upgrade_timeout;
        limit.map_or(DEFAULT_UPGRADE_TIMEOUT, |limit| limit.0)
    }

    /// How long open connections may go on at the end of the process.
    pub fn drain_limits(&self) -> DrainLimits {
        let or = |time: Option<Time>, default| time.map_or(default, |time| time.0);
        DrainLimits {
            delay: or(self.drain_delay, Duration::ZERO),
            stop: or(self.drain, DEFAULT_DRAIN),
            upgrade: or(self.upgrade_drain, DEFAULT_UPGRADE_DRAIN),
        }
    }
}

/// The default of `--workers`: one per core. It is determined once, because a confined process can't read its cgroup.
pub fn default_workers() -> usize {
    static CORES: OnceLock<usize> = OnceLock::new();
    *CORES.get_or_init(|| available_parallelism().map_or(1, NonZeroUsize::get))
}

/// The names of those that are not the same.
pub fn changed<const N: usize>(keys: [(&'static str, bool); N]) -> Vec<&'static str> {
    let differ = keys.into_iter().filter(|(_, is_same)| !is_same);
    differ.map(|(key, _)| key).collect()
}

/// # Errors
///
/// The keys, if there are any.
pub fn refuse_changes(keys: Vec<&'static str>) -> anyhow::Result<()> {
    ensure!(
        keys.is_empty(),
        "{} can't change without a restart",
        keys.join(", ")
    );
    Ok(())
}

/// Long enough for most transfers; systemd sends SIGKILL after 90 s by default.
const DEFAULT_DRAIN: Duration = Duration::from_secs(30);
/// The old process holds nothing up: long transfers end by themselves, and an idle connection does not keep it for days.
const DEFAULT_UPGRADE_DRAIN: Duration = Duration::from_secs(3600);
/// Longer than a name server takes that does not answer at first.
const DEFAULT_UPGRADE_TIMEOUT: Duration = Duration::from_secs(30);
