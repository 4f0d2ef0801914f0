//! `peername exec --admin`: the endpoint of modes preload and notify, served by a process beside the program.

mod counters;
mod health;

use std::os::fd::OwnedFd;
use std::sync::Arc;

use anyhow::Context;
use peername_daemon::admin::{AdminArgs, RunningAdmin};
use peername_daemon::command::block_on;
use peername_daemon::logging::{self, LevelHandle};
use peername_daemon::options::Given;
use peername_daemon::process::confinement;
use peername_daemon::usage::error_text::with_causes;
use peername_exec::admin::{self, AdminProcess};
use peername_identity::{RefusalVerbosity, Table};
use peername_observe::admin::{AdminServer, ConfigInForce, LogLevel, Resources};
use peername_server::confinement::Needs;
use peername_sys::process::caps::{CapabilitySet, keep_only};
use prometheus_client::registry::Registry;
use serde_json::Value;
use tracing::Level;

use super::options::Args;
use counters::{ExecCollector, advise};
use health::{ExecHealth, SupervisorSocket};

/// Starts the process, if `--admin` is given. Returns the supervisor's end of its liveness socket.
///
/// # Errors
///
/// An address or path can't be listened on, or the process can't be started.
pub(super) fn start(given: &Given<Args>, table: Table<'static>) -> anyhow::Result<Option<OwnedFd>> {
    let args = &given.options;
    start_process(Served {
        command: "exec",
        args: args.admin.clone(),
        table,
        shown: shown(given),
        verbose: args.verbose,
    })
}

/// Starts the process that serves this, if `--admin` is given. Returns the end of its liveness socket of the process that it is for.
///
/// # Errors
///
/// An address or path can't be listened on, or the process can't be started.
pub(crate) fn start_process(served: Served) -> anyhow::Result<Option<OwnedFd>> {
    let sockets = served.args.open_for_child()?;
    if sockets.is_empty() {
        return Ok(None);
    }
    let supervisor = admin::start(sockets, |process| match run(served, process) {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("peername: the admin endpoint: {}", with_causes(&error));
            1
        }
    })?;
    Ok(Some(supervisor))
}

/// What the endpoint shows.
pub(crate) struct Served {
    /// The name of the subcommand.
    pub(crate) command: &'static str,
    pub(crate) args: AdminArgs,
    /// The table, or the sum of those of all containers.
    pub(crate) table: Table<'static>,
    /// The options in force, as JSON.
    pub(crate) shown: String,
    pub(crate) verbose: u8,
}

/// What `/config` shows: the options in force, without the program's arguments, which may be secret.
fn shown(given: &Given<Args>) -> String {
    let mut shown = given.shown().clone();
    let program = given.options.command.first();
    let program = program.map(|program| program.to_string_lossy());
    shown.insert("program".to_owned(), program.into());
    format!("{:#}\n", Value::from(shown))
}

/// Serves until the program's first process and the supervisor have exited.
fn run(served: Served, mut process: AdminProcess) -> anyhow::Result<()> {
    keep_only(CapabilitySet::empty())?;
    let needs = Needs {
        removes: served.args.socket_files(),
        ..Needs::default()
    };
    let confinement = confinement::Args::default().confine(needs)?;
    block_on(async {
        let logging = logging::Args {
            verbose: served.verbose,
            ..logging::Args::default()
        };
        let (_log, level) = logging.start();
        confinement.log();
        process.report_ready().context("socketpair(2)")?;
        serve(served, process, level).await
    })
}

async fn serve(served: Served, process: AdminProcess, own: LevelHandle) -> anyhow::Result<()> {
    let Served {
        command,
        args,
        table,
        shown,
        ..
    } = served;
    let AdminProcess {
        sockets,
        supervisor,
        program,
    } = process;
    let socket = Arc::new(SupervisorSocket::new(supervisor)?);
    let mut registry = Registry::default();
    let is_agent = command == "agent";
    registry.register_collector(Box::new(ExecCollector { table, is_agent }));
    let level = ExecLogLevel { own, table };
    let resources = Resources {
        command,
        advise: Some(advise),
        // The agent logs as it was started.
        log_level: (!is_agent).then(|| Box::new(level) as Box<dyn LogLevel>),
        config: Some(ConfigInForce::new(&shown)),
        ..Resources::default()
    };
    let health = ExecHealth(Arc::clone(&socket));
    let server = AdminServer::new(registry, health, args.allowed_hosts(), resources);
    let _running = RunningAdmin::serve(&args, args.adopt(sockets), server)?;
    let ((), exited) = tokio::join!(socket.run(), program.wait_exit());
    Ok(exited?)
}

/// The level of the log, which for the supervisor is which refusals it logs.
struct ExecLogLevel {
    own: LevelHandle,
    table: Table<'static>,
}

impl LogLevel for ExecLogLevel {
    fn get(&self) -> Level {
        self.own.get()
    }

    fn set(&self, level: Level) -> Result<(), String> {
        self.own.set(level)?;
        self.table.settings().set_refusal_verbosity(match level {
            Level::ERROR => RefusalVerbosity::Off,
            Level::WARN | Level::INFO => RefusalVerbosity::Throttled,
            Level::DEBUG | Level::TRACE => RefusalVerbosity::Each,
        });
        Ok(())
    }
}
