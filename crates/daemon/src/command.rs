//! The one order in which every long-running command starts, serves and ends.
//!
//! ```text
//! fork the launcher ─▶ load ─▶ check ─▶ open sockets ─▶ open, drop privileges ─▶ confine ─▶ log ─▶ serve ─▶ end
//!                      files   host     admin, listeners                                            reloads, upgrades
//! ```
//!
//! Capabilities and confinement belong to threads, so the threads of the log, of the admin endpoint and of the workers are
//! started after both.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, bail};
use peername_observe::admin::history::History;
use peername_observe::admin::{AdminServer, ConfigInForce, Health, Resources};
use peername_server::confinement::Needs;
use peername_server::listeners::InheritedSockets;
use peername_server::threads::{keep_blocking_threads, start_first_blocking_thread};
use peername_server::workers::Workers;
use peername_sys::ipc::listen_fds;
use peername_sys::throttle::RepeatThrottle;
use tokio::runtime::{Builder, Handle};

use crate::admin::PreparedAdmin;
use crate::handover::{Predecessor, ProcessState};
use crate::listeners::ListenPlan;
use crate::listeners::running::{Opened, RunningListeners};
use crate::logging::AuditLog;
use crate::reload::bounded_calls::BoundedCalls;
use crate::reload::file_watch::{FileWatch, Fingerprints};
use crate::reload::{MAX_REREADS, Reload, Serving, Setup, log_warnings, serve};
use crate::signals::Signals;
use crate::upgrade::{self, Upgrader, Upgrades};
use crate::usage::UsageError;

/// A long-running command: what it does at each step of [`run`].
pub trait Command: Sized {
    /// The name of the subcommand.
    const NAME: &'static str;

    /// The configuration, read and validated.
    type Setup: Setup;
    /// The facts about this host that were read before anything is opened.
    type Checked;
    /// The resources that need the privileges of the start, beside the listeners.
    type Privileged;
    /// The running command.
    type Running: Running;

    /// Returns why this process can't be replaced by an upgrade, or `None` if it can.
    fn upgrade_refusal(&self) -> Option<&'static str> {
        None
    }

    /// Reads the options, or the file that they name. Notes each file in `files` before it is read.
    ///
    /// # Errors
    ///
    /// All that is wrong with the options and files, in one error.
    fn load(&self, files: &mut Fingerprints) -> anyhow::Result<Self::Setup>;

    /// Validates the configuration against this host, such as its addresses.
    fn check(
        &self,
        setup: &Self::Setup,
        files: &mut Fingerprints,
    ) -> impl Future<Output = anyhow::Result<Self::Checked>>;

    /// The listeners to open.
    fn listen_plans(&self, setup: &Self::Setup, checked: &Self::Checked) -> Vec<ListenPlan>;

    /// Opens what needs the privileges of the start, and drops the privileges that are not needed later.
    fn open(
        &self,
        setup: &Self::Setup,
        checked: Self::Checked,
        listeners: &Opened,
    ) -> impl Future<Output = anyhow::Result<Self::Privileged>>;

    /// Returns what the confined process still needs.
    fn needs(&self, setup: &Self::Setup, listeners: &Opened) -> anyhow::Result<Needs>;

    /// The file for lines of one target, which the log leaves out then.
    fn audit_log(&self, _: &Self::Privileged) -> Option<AuditLog> {
        None
    }

    /// Whether a change of the configuration's files reloads them (`--watch`).
    fn watches(&self, setup: &Self::Setup) -> bool;

    /// Starts the workers. The log is open.
    fn start(
        self,
        ready: Ready<Self>,
    ) -> impl Future<Output = anyhow::Result<(Self::Running, RunningListeners)>>;
}

/// A process that has everything it needs, and serves nothing yet.
pub struct Ready<C: Command> {
    /// The configuration.
    pub setup: C::Setup,
    /// The resources that were opened with privileges.
    pub privileged: C::Privileged,
    /// The open listeners.
    pub listeners: Opened,
    /// The reloads and upgrades so far.
    pub history: History,
}

/// A running command.
pub trait Running: Reload {
    /// The health that the admin endpoint reports.
    type Health: Health;

    /// Makes the admin endpoint of these workers. `resources` are those that every command has.
    fn admin_server(&self, workers: &Workers, resources: Resources) -> AdminServer<Self::Health>;

    /// Waits until something fails that every client depends on, and returns the error. By default nothing can fail.
    fn failure(&mut self) -> impl Future<Output = anyhow::Error> + use<Self> {
        std::future::pending()
    }

    /// Ends the remaining tasks, after all connections have ended.
    fn end(self, history: &History) -> impl Future<Output = ()>;
}

/// Runs a command until a signal stops it, or until another process has taken over.
///
/// # Errors
///
/// The start failed, and nothing was served; or a part of the process has ended by itself, and it should be started again.
pub fn run<C: Command>(command: C) -> anyhow::Result<ExitCode> {
    Signals::defer();
    let (upgrader, previous) = match command.upgrade_refusal() {
        Some(reason) => (Upgrader::unavailable(reason), None),
        None => upgrade::begin(C::NAME)?,
    };
    let mut files = Fingerprints::default();
    let setup = command.load(&mut files)?;
    block_on(start(command, setup, files, upgrader, previous))
}

async fn start<C: Command>(
    command: C,
    setup: C::Setup,
    mut files: Fingerprints,
    upgrader: Upgrader,
    mut previous: Option<Predecessor>,
) -> anyhow::Result<ExitCode> {
    let signals = Signals::listen()?;
    let checked = command.check(&setup, &mut files).await?;
    let process = setup.common().process.clone();

    let mut inherited =
        InheritedSockets::new(listen_fds::receive()?).map_err(UsageError::from_error)?;
    let admin = process.admin.open(&mut inherited, previous.as_mut())?;
    let plans = command.listen_plans(&setup, &checked);
    let mut listeners = Opened::open(plans, &process, inherited, previous)?;
    let privileged = command.open(&setup, checked, &listeners).await?;

    let confinement = process
        .sandbox
        .confine(command.needs(&setup, &listeners)?)?;
    start_first_blocking_thread(&Handle::current()).context("starting a thread")?;
    let (_logs, log_level) = process.logging.start(command.audit_log(&privileged));
    confinement.log();
    log_warnings(&setup);

    let history = History::default();
    let state = ProcessState {
        log_level: log_level.clone(),
        history: history.clone(),
        must_reload: Arc::default(),
    };
    if let Some(previous) = &mut listeners.previous {
        previous.state = Some(state.clone());
    }
    let config = ConfigInForce::new(&setup.common().json);
    let watch = FileWatch::of_configuration(command.watches(&setup), files);
    let ready = Ready {
        setup,
        privileged,
        listeners,
        history: history.clone(),
    };
    let admin = PreparedAdmin::new(admin)?;
    let (mut running, listeners) = command.start(ready).await?;
    let resources = Resources {
        command: C::NAME,
        connections: Some(Box::new(listeners.workers.connections())),
        log_level: Some(Box::new(log_level)),
        config: Some(config.clone()),
        history: history.clone(),
        limit: Some(Arc::new(listeners.workers.limit())),
        ..Resources::default()
    };
    let server = running.admin_server(&listeners.workers, resources);
    let admin = admin.serve(server);
    let failure = running.failure();
    let serving = Serving {
        listeners,
        signals,
        watch,
        rereading: BoundedCalls::new(MAX_REREADS),
        config,
        upgrades: Upgrades { upgrader, admin },
        state,
        refusals: RepeatThrottle::default(),
    };
    let code = tokio::select! {
        code = serve(&mut running, serving) => code,
        failed = failure => bail!(failed),
    };
    running.end(&history).await;
    code
}

/// Runs the control side on this thread until it returns.
pub fn block_on<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let mut builder = Builder::new_current_thread();
    let runtime = keep_blocking_threads(&mut builder, MAX_BLOCKING_THREADS)
        .enable_all()
        .build()
        .context("starting the control runtime")?;
    let done = runtime.block_on(work);
    // Dropping the runtime would wait for lookups that are still in flight.
    runtime.shutdown_background();
    done
}

/// The maximum number of threads of the control side that wait for files. A file system that hangs keeps one for each policy
/// with lists, up to [`MAX_REREADS`] for reloads, and one for each watch.
const MAX_BLOCKING_THREADS: usize = 64;
