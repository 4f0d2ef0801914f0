//! `peername agent`: the true client for containers that are started without peername.

mod options;
mod profile;
mod store;

use std::fs;
use std::io::ErrorKind;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use peername_daemon::options::Given;
use peername_daemon::reload::file_watch::Fingerprints;
use peername_daemon::service_manager;
use peername_daemon::usage::Usage;
use peername_exec::agent::admin::create_totals;
use peername_exec::agent::descriptor_store::{DescriptorStore, StoredDescriptor, StoredName};
use peername_exec::agent::{Agent, AgentHost, AgentPolicy, Ended, holder};
use peername_exec::interfaces;
use peername_identity::Table;
use peername_observe::admin::UnixSocketFile;
use peername_sys::event::signals::SignalFd;
use peername_sys::event::wait_readable;
use peername_sys::process::pidfd::Signal;
use peername_sys::process::stderr::try_write_line;
use peername_sys::process::user;

use crate::cmd::exec::admin::{Served, start_process};
pub(crate) use options::{Args, Policy, policies};
use options::{OnTakeover, Serve};
use serde_json::Value;

/// Runs the agent until a signal ends it, or until another one takes over.
///
/// # Errors
///
/// The start failed.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    match &args.action {
        Some(options::Action::Profile(profile)) => profile::run(profile),
        Some(options::Action::Hold(hold)) => {
            match holder::hold(&store::beside(&hold.listen), &hold.holder)? {}
        }
        None => serve(&args.serve),
    }
}

fn serve(given: &Given<Serve>) -> anyhow::Result<ExitCode> {
    let args = given.options.clone();
    // Errors of the configuration come before anything is changed.
    args.policies(&mut Fingerprints::default())?;
    interfaces::check(false)?;
    make_directory(&args.listen)?;
    let store::Opened { store, mut stored } = store::wait_open(&args)?;
    let socket = match take_socket(&mut stored) {
        Some(socket) => socket,
        None => bind(&args.listen)?,
    };
    let users = [user::effective_uid(), 0].into_iter();
    let users = users.chain(args.runtime_uid.iter().copied()).collect();
    let on_takeover = args.on_takeover;
    let host = Host { args };
    let mut agent = Agent::new(Box::new(host), users, socket, store, stored)?;
    if let Some((line, totals)) = start_admin(given)? {
        agent.serve_admin(line, totals)?;
    }
    match agent.run()? {
        Ended::Stopped(0) => {}
        Ended::Stopped(containers) => eprintln!(
            "peername: the agent has stopped: accept(2) of {containers} containers waits until one is started again"
        ),
        Ended::TakenOver => {
            eprintln!("peername: another agent has taken over");
            if on_takeover == OnTakeover::Wait {
                wait_for_stop()?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Starts the process of the admin endpoint, if `--admin` is given. The agent that was before may have its address for a moment more.
fn start_admin(given: &Given<Serve>) -> anyhow::Result<Option<(OwnedFd, Table<'static>)>> {
    let totals = create_totals()?;
    let deadline = Instant::now() + ADMIN_LIMIT;
    let line = loop {
        let served = Served {
            command: "agent",
            args: given.options.admin.clone(),
            table: totals,
            shown: format!("{:#}\n", Value::from(given.shown().clone())),
            verbose: given.options.verbose.into(),
        };
        match start_process(served) {
            Err(_) if Instant::now() < deadline => thread::sleep(ADMIN_RETRY),
            started => break started?,
        }
    };
    Ok(line.map(|line| (line, totals)))
}

fn wait_for_stop() -> anyhow::Result<()> {
    let signals = SignalFd::open(&[Signal::TERM, Signal::INT])?;
    while signals.next().is_none() {
        wait_readable([signals.as_fd()], None)?;
    }
    Ok(())
}

/// What the agent asks.
#[derive(Debug)]
struct Host {
    args: Serve,
}

impl AgentHost for Host {
    fn load_policies(&self) -> Result<Vec<AgentPolicy>, String> {
        let policies = self.args.policies(&mut Fingerprints::default());
        policies.map_err(|Usage(error)| error)
    }

    fn reopen_store(&self) -> Result<Option<Box<dyn DescriptorStore>>, String> {
        let opened = store::open(&self.args);
        let opened = opened.map_err(|error| error.to_string())?;
        Ok(opened.map(|opened| opened.store))
    }

    fn ready(&self, status: &str) {
        let socket = self.args.listen.display();
        try_write_line(&format!("peername: agent at unix:{socket}: {status}"));
        service_manager::ready(status);
    }

    fn reloading(&self) {
        service_manager::reloading();
    }
}

fn make_directory(socket: &Path) -> anyhow::Result<()> {
    let Some(directory) = socket.parent() else {
        return Ok(());
    };
    match fs::create_dir(directory) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
            Err(error).with_context(|| format!("--listen: {}", directory.display()))
        }
        _ => Ok(()),
    }
}

/// The listening socket of an earlier agent, or of a socket unit.
fn take_socket(stored: &mut Vec<StoredDescriptor>) -> Option<OwnedFd> {
    let at = stored
        .iter()
        .position(|stored| stored.name == StoredName::Socket)?;
    Some(stored.swap_remove(at).fd)
}

fn bind(path: &Path) -> anyhow::Result<OwnedFd> {
    let bound = UnixSocketFile::bind(path).and_then(UnixSocketFile::into_socket);
    bound.map_err(|error| match error.kind() {
        ErrorKind::AddrInUse => anyhow!(
            "--listen {}: another process listens there, which is no agent of this user; stop it or use another path",
            path.display()
        ),
        _ => anyhow!("--listen {}: {error}", path.display()),
    })
}

/// The value of an option that takes the path of a Unix socket, with or without `unix:`.
///
/// # Errors
///
/// The path is not absolute: runtimes have other working directories.
fn socket_path(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text.strip_prefix("unix:").unwrap_or(text));
    match path.is_absolute() {
        true => Ok(path),
        false => Err("use an absolute path, such as unix:/run/peername/agent.sock".to_owned()),
    }
}

const ADMIN_LIMIT: Duration = Duration::from_secs(3);
const ADMIN_RETRY: Duration = Duration::from_millis(100);
/// Where agent and profile have the socket, unless they are told otherwise.
const SOCKET: &str = "/run/peername/agent.sock";
