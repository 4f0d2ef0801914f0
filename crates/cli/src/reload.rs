//! Serves until a signal stops it, and reloads the configuration at SIGHUP and, with `--watch`, at a change of its files:
//! the new configuration is applied as a whole, or not at all.

pub(crate) mod client_lists;
pub(crate) mod file_watch;

use std::path::PathBuf;
use std::process::ExitCode;

use peername_observe::admin::ConfigInForce;
use peername_observe::admin::history::History;

use crate::lifecycle::drain::Ending;
use crate::lifecycle::{self, SignalEvent, Signals};
use crate::listeners::running::RunningListeners;
use crate::process::Process;
use crate::service_manager;
use crate::upgrade::{Outcome, Upgrades};
use file_watch::{FileWatch, Fingerprints};

/// Where a long-running command has its configuration from.
#[derive(Clone, Debug, clap::Args)]
#[group(skip)]
pub(crate) struct Source {
    /// Read this file (docs/config.md) instead of the options of listeners; SIGHUP reads it again
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Reload when a file of the configuration changes: that of --config, and those that it or an option names
    #[arg(long)]
    pub(crate) watch: bool,
}

impl Source {
    /// Whether files may be watched: those of the configuration, or lists of clients that the file may name at a reload.
    pub(crate) fn may_watch(&self) -> bool {
        self.watch || self.config.is_some()
    }
}

/// A running command; its configuration can be replaced.
pub(crate) trait Reload {
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

    /// The options of the process in force.
    fn process(&self) -> &Process;

    /// The configuration in force, as `/config` shows it.
    fn config_json(&self) -> &str;

    /// What it serves, for the service manager.
    fn summary(&self) -> String;
}

/// What every running command has.
pub(crate) struct Running {
    pub(crate) listeners: RunningListeners,
    pub(crate) signals: Signals,
    pub(crate) watch: FileWatch,
    pub(crate) config: ConfigInForce,
    pub(crate) upgrades: Upgrades,
    pub(crate) history: History,
}

/// Serves until SIGTERM or SIGINT, or until another process has taken over, then drains open connections.
///
/// # Errors
///
/// A worker ended by itself: the process should be restarted rather than continue with fewer workers.
pub(crate) async fn serve<R: Reload>(mut command: R, running: Running) -> anyhow::Result<ExitCode> {
    let Running {
        mut listeners,
        mut signals,
        mut watch,
        config,
        mut upgrades,
        history,
    } = running;
    service_manager::ready(&command.summary());
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
                let changed_level = command.process().logging.changed_level();
                let in_maintenance = history.is_in_maintenance();
                upgrades.upgrader.pass_on(changed_level, in_maintenance);
                let (timeout, summary) = (command.process().upgrade_timeout(), command.summary());
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
        let reading = lifecycle::reread(move || {
            let mut files = Fingerprints::default();
            let plan = read(&mut files);
            Ok((files, plan))
        });
        let read = signals.run_until_stopped(&mut listeners.workers, reading);
        let Some(read) = read.await? else {
            break Ending::Stopped;
        };
        let plan = read.and_then(|(files, plan)| {
            watch.replace(files);
            plan
        });
        let applied = match plan {
            Ok(plan) => command.apply(&mut listeners, plan).await,
            Err(error) => Err(error),
        };
        let result = applied.as_ref().map(drop);
        history.add_reload(result.map_err(|error| format!("{error:#}")));
        let summary = command.summary();
        match applied {
            Ok((opened, closed)) => {
                tracing::info!(opened, closed, "reloaded");
                config.set(command.config_json());
                service_manager::ready(&format!("reloaded; {summary}"));
            }
            Err(error) => {
                tracing::warn!("reload refused, all stays as it was: {error:#}");
                service_manager::ready(&format!("last reload refused ({error:#}); {summary}"));
            }
        }
    };
    service_manager::stopping();
    let limits = command.process().drain_limits();
    signals.end(listeners.workers, ending, limits).await
}
