//! `peername exec --admin`: the endpoint of modes preload and notify, served by a process beside the program.

mod counters;
mod health;

use std::os::fd::OwnedFd;
use std::sync::Arc;

use anyhow::Context;
use peername_daemon::admin::{AdminArgs, PreparedAdmin};
use peername_daemon::command::block_on;
use peername_daemon::logging::{LevelHandle, LogArgs};
use peername_daemon::options::Given;
use peername_daemon::process::confinement::SandboxArgs;
use peername_daemon::usage::error_text::with_causes;
use peername_exec::admin::{self, AdminProcess};
use peername_identity::{RefusalVerbosity, Table};
use peername_observe::admin::history::History;
use peername_observe::admin::{AdminServer, ConfigInForce, LogLevel, Resources};
use peername_server::confinement::Needs;
use peername_sys::process::caps::{CapabilitySet, keep_only};
use peername_sys::process::stderr::write_line;
use prometheus_client::registry::Registry;
use serde_json::Value;
use tracing::Level;

use super::options::Args;
use counters::{ExecCollector, advise};
use health::{ExecHealth, SupervisorSocket};

/// Starts the process that serves the endpoint, if `--admin` is given. Returns the supervisor's end of the liveness socket.
pub(super) fn start(given: &Given<Args>, table: Table<'static>) -> anyhow::Result<Option<OwnedFd>> {
    let args = &given.options;
    start_process(AdminEndpoint {
        is_agent: false,
        args: args.admin.clone(),
        table,
        config: options_as_json(given),
        verbose: args.verbose,
    })
}

/// Starts the process that serves the endpoint, if `--admin` is given. Returns the other end of its liveness socket: for the
/// supervisor or agent that the process reports on.
pub(crate) fn start_process(endpoint: AdminEndpoint) -> anyhow::Result<Option<OwnedFd>> {
    let sockets = endpoint.args.open_for_child()?;
    if sockets.is_empty() {
        return Ok(None);
    }
    let supervisor = admin::start(sockets, |process| match run(endpoint, process) {
        Ok(()) => 0,
        Err(error) => {
            write_line(format_args!(
                "peername: the admin endpoint: {}",
                with_causes(&error)
            ));
            1
        }
    })?;
    Ok(Some(supervisor))
}

/// An admin endpoint, and what it shows.
pub(crate) struct AdminEndpoint {
    /// Whether it reports on the agent, not on `exec`.
    pub(crate) is_agent: bool,
    pub(crate) args: AdminArgs,
    /// The table of `exec`, or the sum of the tables of the agent's containers.
    pub(crate) table: Table<'static>,
    /// The options in force, as JSON.
    pub(crate) config: String,
    pub(crate) verbose: u8,
}

/// The options in force as JSON, without the program's arguments, which may be secret.
fn options_as_json(given: &Given<Args>) -> String {
    let mut options = given.as_json().clone();
    let program = given.options.command.first();
    let program = program.map(|program| program.to_string_lossy());
    options.insert("program".to_owned(), program.into());
    format!("{:#}\n", Value::from(options))
}

/// Serves until the program's first process and the supervisor have exited.
fn run(endpoint: AdminEndpoint, mut process: AdminProcess) -> anyhow::Result<()> {
    keep_only(CapabilitySet::empty())?;
    let needs = Needs {
        removes: endpoint.args.socket_files(),
        ..Needs::default()
    };
    let confinement = SandboxArgs::default().confine(needs)?;
    block_on(async {
        let logging = LogArgs {
            verbose: endpoint.verbose,
            ..LogArgs::default()
        };
        let (_logs, level) = logging.start(None);
        confinement.log();
        process.report_ready().context("socketpair(2)")?;
        serve(endpoint, process, level).await
    })
}

async fn serve(
    endpoint: AdminEndpoint,
    process: AdminProcess,
    level: LevelHandle,
) -> anyhow::Result<()> {
    let AdminEndpoint {
        is_agent,
        args,
        table,
        config,
        ..
    } = endpoint;
    let AdminProcess {
        sockets,
        supervisor,
        program,
    } = process;
    let socket = Arc::new(SupervisorSocket::new(supervisor)?);
    let mut registry = Registry::default();
    registry.register_collector(Box::new(ExecCollector { table, is_agent }));
    let level = ExecLogLevel { level, table };
    let history = History::default();
    let resources = Resources {
        command: if is_agent { "agent" } else { "exec" },
        advise: Some(advise),
        // The agent's log level can't be changed while it runs.
        log_level: (!is_agent).then(|| Box::new(level) as Box<dyn LogLevel>),
        config: Some(ConfigInForce::new(&config)),
        history: history.clone(),
        ..Resources::default()
    };
    let health = ExecHealth(Arc::clone(&socket));
    let server = AdminServer::new(registry, health, args.allowed_hosts(), resources);
    let _running = PreparedAdmin::new(args.adopt(sockets))?.serve(server);
    let ((), exited) = tokio::join!(socket.run(&history), program.wait_exit());
    Ok(exited?)
}

/// The log level of the endpoint's process and of the supervisor, which reads in the table which refusals to log.
struct ExecLogLevel {
    level: LevelHandle,
    table: Table<'static>,
}

impl LogLevel for ExecLogLevel {
    fn get(&self) -> Level {
        self.level.get()
    }

    fn set(&self, level: Level) -> Result<(), String> {
        self.level.set(level)?;
        self.table.settings().set_refusal_verbosity(match level {
            Level::ERROR => RefusalVerbosity::Off,
            Level::WARN | Level::INFO => RefusalVerbosity::Throttled,
            Level::DEBUG | Level::TRACE => RefusalVerbosity::Each,
        });
        Ok(())
    }
}
