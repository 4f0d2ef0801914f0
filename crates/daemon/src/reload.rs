//! Serves until a signal stops it, and reloads the configuration at SIGHUP and, with `--watch`, at a change of its files:
//! the new configuration is applied as a whole, or not at all.

pub mod bounded_calls;
mod changed_keys;
pub mod client_lists;
pub mod file_watch;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use anyhow::Context;
use peername_observe::admin::ConfigInForce;
use peername_sys::throttle::RepeatThrottle;
use tokio::time::timeout;

use crate::handover::ProcessState;
use crate::listeners::running::RunningListeners;
use crate::options::heading;
use crate::process::Process;
use crate::service_manager;
use crate::signals::drain::Ending;
use crate::signals::{SignalEvent, Signals};
use crate::upgrade::Upgrades;
use crate::usage::error_text::with_causes;
use crate::value::text::join;
use bounded_calls::BoundedCalls;
use changed_keys::changed_keys;
use file_watch::{FileWatch, Fingerprints, ReadCause};

/// The options that name the configuration file, and watch it.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = heading::OPERATION)]
#[group(skip)]
pub struct ConfigSource {
    /// Read this file (docs/config.md), whose tables have the options of listeners, which can't be given beside it then; SIGHUP
    /// reads it again
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Reload when a file of the configuration changes: that of --config, and those that it or an option names
    #[arg(long)]
    pub watch: bool,
}

impl ConfigSource {
    /// Whether files may be watched at some time: those of the configuration, or lists of clients, which the file may name
    /// after a reload.
    pub fn may_watch(&self) -> bool {
        self.watch || self.config.is_some()
    }
}

/// A running command whose configuration can be replaced.
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
    /// What it has in common with those of other commands.
    fn common(&self) -> &Common;

    /// What is served, for the service manager.
    fn summary(&self) -> String;
}

/// The parts that the configuration of every command has.
#[derive(Debug)]
pub struct Common {
    /// The options of the process.
    pub process: Process,
    /// The configuration as `/config` shows it: JSON.
    pub json: String,
    /// Warnings about the configuration, which is valid nevertheless.
    pub warnings: Vec<String>,
}

/// Logs the warnings of a configuration that takes effect.
pub(crate) fn log_warnings(setup: &impl Setup) {
    for warning in &setup.common().warnings {
        tracing::warn!("{warning}");
    }
}

/// The parts that every running command has.
pub struct Serving {
    /// The listeners and workers.
    pub listeners: RunningListeners,
    /// The signals that end or reload it.
    pub signals: Signals,
    /// The files that reload it (`--watch`).
    pub watch: FileWatch,
    /// Reads the files of a reload.
    pub rereading: BoundedCalls,
    /// The configuration that `/config` shows.
    pub config: ConfigInForce,
    /// The means to replace the process.
    pub upgrades: Upgrades,
    /// The state that an upgrade hands over.
    pub state: ProcessState,
    /// Throttles the log of refused reloads that are tried again.
    pub refusals: RepeatThrottle,
}

/// Serves until SIGTERM or SIGINT, or until another process has taken over, then drains open connections. Fails as
/// [`Signals::next`] does.
pub async fn serve<R: Reload>(command: &mut R, mut serving: Serving) -> anyhow::Result<ExitCode> {
    service_manager::ready(&command.setup().summary());
    service_manager::keep_alive(serving.listeners.workers.liveness());
    serving.watch.start();
    let ending = loop {
        let mut is_retry = false;
        let event = if serving.state.must_reload.swap(false, Relaxed) {
            SignalEvent::Reload
        } else {
            tokio::select! {
                event = serving.signals.next(&mut serving.listeners.workers) => event?,
                cause = serving.watch.changed() => {
                    is_retry = cause == ReadCause::Retry;
                    SignalEvent::Reload
                }
            }
        };
        let ending = match event {
            SignalEvent::Stop => Some(Ending::Stopped),
            SignalEvent::Reload => serving.reload(command, is_retry).await?,
            SignalEvent::Upgrade => serving.upgrade(command).await?,
        };
        if let Some(ending) = ending {
            break ending;
        }
    };
    service_manager::stopping();
    let limits = command.setup().common().process.drain_limits();
    let Serving {
        signals, listeners, ..
    } = serving;
    signals.end(listeners.workers, ending, limits).await
}

impl Serving {
    /// Upgrades the process. Returns how this process ends, or `None` if it goes on.
    async fn upgrade<R: Reload>(&mut self, command: &R) -> anyhow::Result<Option<Ending>> {
        let process = &command.setup().common().process;
        let summary = command.setup().summary();
        let (listeners, signals) = (&mut self.listeners, &mut self.signals);
        self.upgrades
            .upgrade(listeners, signals, &self.state, process, &summary)
            .await
    }

    /// Reloads the configuration. Returns an ending if a signal has asked to stop before the configuration was read. A retry
    /// that is refused for the same reason as the attempt before it counts as the same refused reload.
    async fn reload<R: Reload>(
        &mut self,
        command: &mut R,
        is_retry: bool,
    ) -> anyhow::Result<Option<Ending>> {
        service_manager::reloading();
        let Some(plan) = self.read_plan(command).await? else {
            return Ok(Some(Ending::Stopped));
        };
        let before = command.setup().common().json.to_owned();
        let applied = match plan {
            Ok(plan) => command.apply(&mut self.listeners, plan).await,
            Err(error) => Err(error),
        };
        // Each error of the file is a line. A log line, STATUS= of the service manager and `/status` have one.
        let applied = applied.map_err(|error| with_causes(&error).replace('\n', "; "));
        let summary = command.setup().summary();
        match applied {
            Ok((opened, closed)) => {
                self.refusals.clear();
                self.state.history.add_reload(Ok(()));
                let changed = changed_keys(&before, &command.setup().common().json);
                let changed_files = self.watch.note_in_force();
                let files = join(changed_files.iter().map(|file| file.display()));
                tracing::info!(opened, closed, changed, files, "reloaded");
                log_warnings(command.setup());
                self.config.set(&command.setup().common().json);
                service_manager::ready(&format!("reloaded; {summary}"));
            }
            Err(error) => {
                let is_new = !is_retry || self.refusals.is_new(&error);
                if self.refusals.passes(&error) || is_new {
                    tracing::warn!("reload refused, nothing was changed: {error}");
                }
                if is_new {
                    self.state.history.add_reload(Err(error.clone()));
                }
                service_manager::ready(&format!("last reload refused ({error}); {summary}"));
            }
        }
        Ok(None)
    }

    /// Reads the new configuration, which may take long, because names are resolved. Returns `None` if a signal has asked to
    /// stop, else the plan or why it is refused.
    async fn read_plan<R: Reload>(
        &mut self,
        command: &R,
    ) -> anyhow::Result<Option<anyhow::Result<R::Plan>>> {
        let read = command.reader();
        let reading = reread(&self.rereading, move || {
            let mut files = Fingerprints::default();
            let plan = files.note_read(read);
            Ok((files, plan))
        });
        let signals = &mut self.signals;
        let read = signals.run_until_stopped(&mut self.listeners.workers, reading);
        Ok(match read.await? {
            Some(Ok((files, plan))) => {
                self.watch.replace(files);
                Some(plan)
            }
            Some(Err(error)) => {
                self.watch.defer_to_next_event();
                Some(Err(error))
            }
            None => None,
        })
    }
}

/// Reads files and names again for a reload. A thread that a file system or a name server hangs is left behind.
///
/// # Errors
///
/// `read` failed, or took longer than `REREAD_TIMEOUT`, with the wait for others that hang.
async fn reread<T: Send + 'static>(
    rereading: &BoundedCalls,
    read: impl FnOnce() -> anyhow::Result<T> + Send + 'static,
) -> anyhow::Result<T> {
    let read = timeout(REREAD_TIMEOUT, rereading.run(read)).await;
    read.with_context(|| format!("the files or their names took longer than {REREAD_TIMEOUT:?}"))??
}

/// The reads of reloads that may hang at a time: a later configuration may leave out what hangs the one before.
pub(crate) const MAX_REREADS: usize = 4;
/// As long as a lookup takes, with all its retries, if the name server is slow.
const REREAD_TIMEOUT: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// A later configuration may leave out what hangs the one before.
    #[tokio::test]
    async fn reload_is_read_beside_one_that_hangs() {
        let rereading = BoundedCalls::new(MAX_REREADS);
        let (server, hung) = mpsc::channel::<()>();
        let hangs = reread(&rereading, move || Ok(hung.recv().is_ok()));
        assert!(timeout(Duration::from_millis(50), hangs).await.is_err());
        let next = timeout(Duration::from_secs(5), reread(&rereading, || Ok(())));
        assert!(next.await.is_ok_and(|read| read.is_ok()));
        drop(server);
    }
}
