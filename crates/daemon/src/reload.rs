//! Serves until a signal stops it, and reloads the configuration at SIGHUP and, with `--watch`, at a change of its files:
//! the new configuration is applied as a whole, or not at all.

mod changed_keys;
pub mod client_lists;
pub mod file_watch;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use peername_observe::admin::ConfigInForce;
use peername_observe::admin::history::History;
use tokio::time::timeout;

use crate::listeners::running::RunningListeners;
use crate::options::heading;
use crate::process::Process;
use crate::service_manager;
use crate::signals::drain::Ending;
use crate::signals::{SignalEvent, Signals};
use crate::upgrade::{Outcome, Upgrades};
use crate::usage::error_text::with_causes;
use changed_keys::changed_keys;
use file_watch::{FileWatch, Fingerprints};

/// Where a long-running command has its configuration from.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = heading::OPERATION)]
#[group(skip)]
pub struct Source {
    /// Read this file (docs/config.md) instead of the options of listeners; SIGHUP reads it again
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Reload when a file of the configuration changes: that of --config, and those that it or an option names
    #[arg(long)]
    pub watch: bool,
}

impl Source {
    /// Whether files may be watched: those of the configuration, or lists of clients that the file may name at a reload.
    pub fn may_watch(&self) -> bool {
        self.watch || self.config.is_some()
    }
}

/// A running command; its configuration can be replaced.
pub trait Reload {
    /// The configuration.
    type Setup: Setup;
    /// A configuration that was read and validated.
    type Plan: Send + 'static;

    /// Returns a function that reads all files and resolves all names again, and notes each file before it is read. It
    /// runs on a thread of its own, because that may take long.
    fn reader(
        &self,
    ) -> impl FnOnce(&mut Fingerprints) -> anyhow::Result<Self::Plan> + Send + 'static;

    /// Switches to another configuration for new connections, or changes nothing. Returns the addresses opened and closed.
    ///
    /// # Errors
    ///
    /// Why the configuration is refused.
    fn apply(
        &mut self,
        listeners: &mut RunningListeners,
        plan: Self::Plan,
    ) -> impl Future<Output = anyhow::Result<(String, String)>>;

    /// The configuration in force.
    fn setup(&self) -> &Self::Setup;
}

/// A validated configuration.
pub trait Setup {
    /// The options of the process.
    fn process(&self) -> &Process;

    /// The configuration as `/config` shows it: JSON.
    fn json(&self) -> &str;

    /// What is served, for the service manager.
    fn summary(&self) -> String;

    /// What is valid in the configuration, but not as it should be.
    fn warnings(&self) -> &[String];
}

/// Logs the warnings of a configuration that takes effect.
pub(crate) fn log_warnings(setup: &impl Setup) {
    for warning in setup.warnings() {
        tracing::warn!("{warning}");
    }
}

/// What every running command has.
pub struct Serving {
    /// The listeners and workers.
    pub listeners: RunningListeners,
    /// The signals that end or reload it.
    pub signals: Signals,
    /// The files that reload it (`--watch`).
    pub watch: FileWatch,
    /// What `/config` shows.
    pub config: ConfigInForce,
    /// The means to replace the process.
    pub upgrades: Upgrades,
    /// What became of reloads and upgrades.
    pub history: History,
}

/// Serves until SIGTERM or SIGINT, or until another process has taken over, then drains open connections.
///
/// # Errors
///
/// A worker ended by itself: the process should be restarted rather than continue with fewer workers.
pub async fn serve<R: Reload>(command: &mut R, serving: Serving) -> anyhow::Result<ExitCode> {
    let Serving {
        mut listeners,
        mut signals,
        mut watch,
        config,
        mut upgrades,
        history,
    } = serving;
    service_manager::ready(&command.setup().summary());
    service_manager::keep_alive(listeners.workers.liveness());
    watch.start();
    let ending = loop {
        let event = tokio::select! {
            event = signals.next(&mut listeners.workers) => event?,
            () = watch.changed() => SignalEvent::Reload,
        };
        match event {
            SignalEvent::Stop => break Ending::Stopped,
            SignalEvent::Reload => {}
            SignalEvent::Upgrade => {
                let changed_level = command.setup().process().logging.changed_level();
                let in_maintenance = history.is_in_maintenance();
                upgrades.upgrader.pass_on(changed_level, in_maintenance);
                let (timeout, summary) = (
                    command.setup().process().upgrade_timeout,
                    command.setup().summary(),
                );
                let upgrade = upgrades.upgrade(&mut listeners, &mut signals, timeout, &summary);
                match upgrade.await? {
                    Outcome::Refused(reason) => {
                        history.add_refused_upgrade(reason);
                        continue;
                    }
                    Outcome::HandedOver => break Ending::Replaced,
                    Outcome::Stopped => break Ending::Stopped,
                }
            }
        }
        service_manager::reloading();
        // Resolving names may take long, and nothing is changed yet.
        let read = command.reader();
        let reading = reread(move || {
            let mut files = Fingerprints::default();
            let plan = read(&mut files);
            Ok((files, plan))
        });
        let read = signals.run_until_stopped(&mut listeners.workers, reading);
        let Some(read) = read.await? else {
            break Ending::Stopped;
        };
        let plan = match read {
            Ok((files, plan)) => {
                watch.replace(files);
                plan
            }
            Err(error) => {
                watch.await_event();
                Err(error)
            }
        };
        let before = command.setup().json().to_owned();
        let applied = match plan {
            Ok(plan) => command.apply(&mut listeners, plan).await,
            Err(error) => Err(error),
        };
        let applied = applied.map_err(|error| with_causes(&error));
        history.add_reload(applied.as_ref().map(drop).map_err(Clone::clone));
        let summary = command.setup().summary();
        match applied {
            Ok((opened, closed)) => {
                let changed = changed_keys(&before, command.setup().json());
                tracing::info!(opened, closed, changed, "reloaded");
                log_warnings(command.setup());
                config.set(command.setup().json());
                service_manager::ready(&format!("reloaded; {summary}"));
            }
            Err(error) => {
                tracing::warn!("reload refused, all stays as it was: {error}");
                service_manager::ready(&format!("last reload refused ({error}); {summary}"));
            }
        }
    };
    service_manager::stopping();
    let limits = command.setup().process().drain_limits();
    signals.end(listeners.workers, ending, limits).await
}

/// Reads files and names again for a reload, beside the control side. A thread that is stuck in a file system or a name
/// server is left behind, and the next reload begins another.
///
/// # Errors
///
/// Those of `read`; or it took longer than `REREAD_TIMEOUT`.
async fn reread<T: Send + 'static>(
    read: impl FnOnce() -> anyhow::Result<T> + Send + 'static,
) -> anyhow::Result<T> {
    let reading = tokio::task::spawn_blocking(read);
    let read = timeout(REREAD_TIMEOUT, reading).await;
    read.with_context(|| format!("the files or their names took longer than {REREAD_TIMEOUT:?}"))??
}

/// The time that a slow name server takes with all retries.
const REREAD_TIMEOUT: Duration = Duration::from_secs(60);
