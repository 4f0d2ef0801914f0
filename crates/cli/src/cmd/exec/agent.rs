//! `peername agent`: the true client for containers that are started without peername.

mod options;
pub(crate) mod policy_args;
pub(crate) mod profile;
mod store;
pub(crate) mod values;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, ensure};
use peername_daemon::options::Given;
use peername_daemon::reload::file_watch::Fingerprints;
use peername_daemon::service_manager;
use peername_daemon::usage::UsageError;
use peername_daemon::usage::error_text::{advise_on_permission, with_causes};
use peername_exec::agent::admin::create_totals;
use peername_exec::agent::descriptor_store::{DescriptorStore, StoredDescriptor, StoredName};
use peername_exec::agent::{AgentExit, AgentHost, AgentPolicy, PreparedAgent, holder};
use peername_exec::interfaces;
use peername_identity::Table;
use peername_server::listeners::BindError;
use peername_sys::event::signals::{self, SignalFd};
use peername_sys::event::wait_readable;
use peername_sys::ipc::unix_socket_file::{UnixSocketFile, is_reached_at, refuse_other_file};
use peername_sys::process::caps::{CapabilitySet, is_effective, keep_only};
use peername_sys::process::limits;
use peername_sys::process::pidfd::{PidFd, Signal};
use peername_sys::process::stderr::{try_write_line, write_line};
use peername_sys::process::user;
use serde_json::Value;

use super::admin::{AdminEndpoint, start_process};
pub(crate) use options::Args;
use options::{OnTakeover, Serve};

/// Runs the agent until a signal ends it, or until another agent takes over.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    match &args.action {
        Some(options::Action::Profile(profile)) => profile::run(profile),
        Some(options::Action::Hold(hold)) => {
            refuse_other_file(&hold.holder)
                .with_context(|| format!("--holder {}", hold.holder.display()))?;
            holder::hold(&store::holder_path(&hold.listen), &hold.holder)
                .map_err(|error| advise_on_permission(error.into(), NOT_ROOT))?;
            Ok(ExitCode::SUCCESS)
        }
        None => serve(&args.serve),
    }
}

fn serve(given: &Given<Serve>) -> anyhow::Result<ExitCode> {
    service_manager::warn_on_stderr();
    // SIGHUP waits until the agent serves, which may wait for its holder before.
    signals::block(&[Signal::HUP]);
    let args = &given.options;
    // Reports errors of the configuration before anything is changed.
    args.policies(&mut Fingerprints::default())?;
    interfaces::check(false)?;
    PidFd::check_proc().context("the containers' processes are found by /proc")?;
    // The store has descriptors of every container.
    limits::raise_open_files()?;
    let users = [user::effective_uid(), 0]
        .into_iter()
        .chain(args.runtime_uid.iter().copied())
        .collect();
    // What can fail is done before an earlier agent ends.
    let host = Host {
        args: args.clone(),
        policy_files: RefCell::default(),
    };
    let prepared = PreparedAgent::new(Box::new(host), users)?;
    let totals = create_totals()?;
    let admin = match start_admin(given, totals) {
        // An earlier agent may have the address.
        Err(error) if is_in_use(&error) => None,
        started => Some(started?),
    };
    let OpenedAgent {
        store,
        stored,
        socket,
        has_predecessor,
    } = listen(args).map_err(|error| advise_on_permission(error, NOT_ROOT))?;
    let needed = CapabilitySet::SYS_PTRACE | CapabilitySet::SYS_ADMIN;
    if is_effective(needed) {
        // Without CAP_NET_ADMIN a listener's network can't be asked for.
        keep_only(needed | CapabilitySet::NET_ADMIN)?;
    }
    let liveness = match admin {
        Some(liveness) => liveness,
        None => match retry_start_admin(given, totals) {
            Err(error) if has_predecessor => {
                log_and_go_on(&error);
                None
            }
            started => started?,
        },
    };
    let mut agent = prepared.take_over(socket, store, stored)?;
    if let Some(liveness) = liveness {
        agent.serve_admin(liveness, totals)?;
    }
    match agent.run()? {
        AgentExit::Stopped(0) => {}
        AgentExit::Stopped(containers) => write_line(format_args!(
            "peername: the agent has stopped: accept(2) waits in its {containers} containers until one is started again"
        )),
        AgentExit::TakenOver => {
            write_line("peername: another agent has taken over");
            if args.on_takeover == OnTakeover::Wait {
                wait_for_stop()?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The agent's socket and its store.
struct OpenedAgent {
    store: Box<dyn DescriptorStore>,
    /// What an earlier agent has left in the store, beside the socket.
    stored: Vec<StoredDescriptor>,
    socket: OwnedFd,
    /// Whether an earlier agent has left anything in the store. It has ended by now, and its containers wait for this one.
    has_predecessor: bool,
}

fn listen(args: &Serve) -> anyhow::Result<OpenedAgent> {
    // Before the holder makes its own file beside it.
    refuse_other_file(&args.listen)
        .with_context(|| format!("--listen {}", args.listen.display()))?;
    make_directory(&args.listen)?;
    let store::Opened { store, mut stored } = store::wait_open(args)?;
    let has_predecessor = !stored.is_empty();
    let socket = match take_socket(&mut stored, &args.listen) {
        Some(socket) => socket,
        None => bind(&args.listen)?,
    };
    match set_mode(&args.listen, socket_mode(args)) {
        // The agent checks the user of each peer in any case.
        Err(error) if has_predecessor => log_and_go_on(&error),
        set => set?,
    }
    Ok(OpenedAgent {
        store,
        stored,
        socket,
        has_predecessor,
    })
}

/// Logs an error that is not worth the end of the agent, for whose calls containers wait.
fn log_and_go_on(error: &anyhow::Error) {
    write_line(format_args!(
        "peername: {}; the agent goes on without",
        with_causes(error)
    ));
}

/// Starts the process of the admin endpoint, if `--admin` is given. Returns the agent's end of its liveness socket.
fn start_admin(given: &Given<Serve>, totals: Table<'static>) -> anyhow::Result<Option<OwnedFd>> {
    start_process(AdminEndpoint {
        is_agent: true,
        args: given.options.admin.clone(),
        table: totals,
        config: format!("{:#}\n", Value::from(given.as_json().clone())),
        verbose: given.options.verbose.into(),
    })
}

/// Starts the process of the admin endpoint once its address is free: an earlier agent may have it for a moment more.
fn retry_start_admin(
    given: &Given<Serve>,
    totals: Table<'static>,
) -> anyhow::Result<Option<OwnedFd>> {
    let deadline = Instant::now() + ADMIN_RETRY_LIMIT;
    loop {
        match start_admin(given, totals) {
            Err(error) if is_in_use(&error) && Instant::now() < deadline => {
                thread::sleep(ADMIN_RETRY_INTERVAL);
            }
            started => return started,
        }
    }
}

fn is_in_use(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let bind = cause.downcast_ref::<BindError>();
        let io = cause.downcast_ref::<io::Error>();
        bind.is_some_and(BindError::is_in_use)
            || io.is_some_and(|error| error.kind() == ErrorKind::AddrInUse)
    })
}

fn wait_for_stop() -> anyhow::Result<()> {
    let signals = SignalFd::open(&[Signal::TERM, Signal::INT])?;
    while signals.next().is_none() {
        wait_readable([signals.as_fd()], None)?;
    }
    Ok(())
}

/// The agent's access to its configuration, its store and the service manager.
#[derive(Debug)]
struct Host {
    args: Serve,
    /// The files of the policies when they were last read.
    policy_files: RefCell<Fingerprints>,
}

impl AgentHost for Host {
    fn load_policies(&self) -> Result<Vec<AgentPolicy>, String> {
        let mut files = self.policy_files.borrow_mut();
        *files = Fingerprints::default();
        let policies = files.note_read(|files| self.args.policies(files));
        policies.map_err(|UsageError(error)| error)
    }

    fn watches_policies(&self) -> bool {
        self.args.watch
    }

    fn policy_directories(&self) -> BTreeSet<PathBuf> {
        self.policy_files.borrow().directories()
    }

    fn are_policies_current(&self) -> bool {
        self.policy_files.borrow().are_current()
    }

    fn reopen_store(&self) -> Result<Option<Box<dyn DescriptorStore>>, String> {
        match store::open(&self.args) {
            Ok(opened) => Ok(opened.map(|opened| opened.store)),
            Err(error) => Err(error.to_string()),
        }
    }

    fn ready(&self, status: &str) {
        let socket = self.args.listen.display();
        try_write_line(&format!("peername: agent at unix:{socket}: {status}"));
        service_manager::ready(status);
    }

    fn reloading(&self) {
        service_manager::reloading();
    }

    fn repeat_notes(&self) -> Option<Duration> {
        (!service_manager::send_queued()).then_some(service_manager::RETRY)
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

/// The listening socket of an earlier agent, if runtimes reach it at this path. A service manager may have kept other sockets,
/// too: they are closed.
fn take_socket(stored: &mut Vec<StoredDescriptor>, path: &Path) -> Option<OwnedFd> {
    let sockets: Vec<_> = stored
        .extract_if(.., |stored| stored.name == StoredName::Socket)
        .collect();
    sockets
        .into_iter()
        .map(|socket| UnixListener::from(socket.fd))
        .find(|socket| is_reached_at(socket, path))
        .map(OwnedFd::from)
}

/// The mode of the socket's file. With `--runtime-uid` every user can connect, and the agent checks the user of each peer.
fn socket_mode(args: &Serve) -> u32 {
    if args.runtime_uid.is_empty() {
        0o600
    } else {
        0o666
    }
}

/// Sets the mode of the socket's file: a new file has another mode, and the file of an earlier agent may have been made with
/// other options.
fn set_mode(path: &Path, mode: u32) -> anyhow::Result<()> {
    let shown = path.display();
    let found =
        fs::symlink_metadata(path).with_context(|| format!("--listen {shown}: lstat(2)"))?;
    ensure!(
        found.file_type().is_socket(),
        "--listen {shown}: not a socket"
    );
    if found.mode() & 0o7777 == mode {
        return Ok(());
    }
    fs::set_permissions(path, Permissions::from_mode(mode))
        .with_context(|| format!("--listen {shown}: chmod(2)"))
}

fn bind(path: &Path) -> anyhow::Result<OwnedFd> {
    let shown = path.display();
    UnixSocketFile::bind(path)
        .and_then(UnixSocketFile::into_socket)
        .map_err(|error| match error.kind() {
            ErrorKind::AddrInUse => anyhow!(
                "--listen {shown}: another process listens there, which is no agent of this user; stop it or use another path"
            ),
            _ => anyhow::Error::new(error).context(format!("--listen {shown}")),
        })
}

const NOT_ROOT: &str = "run as root, or --listen in a folder of yours";
const ADMIN_RETRY_LIMIT: Duration = Duration::from_secs(3);
const ADMIN_RETRY_INTERVAL: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn socket_that_runtimes_reach_is_taken_among_several() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("agent.sock");
        let mut stored: Vec<StoredDescriptor> = ["7", "8", "9"]
            .map(|process| {
                let temporary = dir.path().join(format!("agent.sock.{process}"));
                let socket = UnixListener::bind(&temporary).unwrap();
                if process != "9" {
                    fs::rename(temporary, &path).unwrap();
                }
                StoredDescriptor {
                    name: StoredName::Socket,
                    fd: socket.into(),
                }
            })
            .into();
        let reached = stored.get(1).map(|stored| stored.fd.as_raw_fd());
        let taken = take_socket(&mut stored, &path);
        assert_eq!(taken.map(|socket| socket.as_raw_fd()), reached);
        assert!(stored.is_empty());
    }
}
