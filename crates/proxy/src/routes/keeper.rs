//! The keeper: a second process that installs a running proxy's rules and routes, and removes them when the proxy exits.
//!
//! The proxy gives up CAP_NET_ADMIN before it accepts its first client, so it can't remove its rules when it exits, and a
//! killed process removes nothing at all. The keeper holds that capability and nothing else, and has no network traffic.
//! EOF on its standard input tells it that the proxy has exited, for whatever cause.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, ExitCode, Stdio};

use peername_sys::NameCall;
use peername_sys::netlink::{self, Netlink};
use peername_sys::process::caps::{self, CapabilitySet};
use tokio::net::unix::pipe;
use tokio::signal::unix::{SignalKind, signal};

use super::backend_rule::{BackendRule, rules_for};
use super::error::Error;
use super::install::InstalledRoutes;
use super::inventory;
use super::table_slot::{SlotLock, TableSlot};
use crate::backend::Backend;

/// The proxy's handle of its keeper. The rules and routes are installed until this value is dropped or the process exits
/// in any other way.
#[derive(Debug)]
pub struct Keeper {
    process: Child,
    /// The keeper's standard output; nothing more is written there once it is ready.
    stdout: Option<ChildStdout>,
}

impl Keeper {
    /// Starts the keeper and returns when the rules and routes are installed.
    ///
    /// Executes this very binary again, as `peername routes keep`, so only the `peername` binary may call it. Call it
    /// before this process gives up its capabilities: the keeper acquires them in the same way as this process did. The
    /// pipe between the two is close-on-exec, so no other child keeps it open.
    ///
    /// # Errors
    ///
    /// [`Error::Start`] where the process can't be started, [`Error::Keeper`] with the reason that it reports.
    pub fn start<B: Into<Backend> + Copy>(targets: &[B]) -> Result<Self, Error> {
        let targets = targets.iter().map(|&target| target.into());
        let mut child = Command::new("/proc/self/exe")
            // The binary chooses its program by argv[0]; this process may run under another name.
            .arg0("peername")
            .args(["routes", "keep"])
            .args(targets.map(|target: Backend| format!("--target={target}")))
            // ^C sends SIGINT to every process of the foreground group.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(Error::Start)?;
        let mut stdout = child.stdout.take();
        let answer = first_line(stdout.as_mut());
        // Constructed before the answer is checked, so that an error drops it: a drop waits until a failed keeper has
        // exited.
        let keeper = Self {
            process: child,
            stdout,
        };
        match answer.map_err(Error::Start)?.trim_end() {
            READY => Ok(keeper),
            "" => Err(Error::Keeper(
                "the keeper of the routes ended at once".into(),
            )),
            reason => Err(Error::Keeper(reason.to_owned())),
        }
    }
}

impl Keeper {
    /// Waits until the keeper has exited. While the proxy runs, the keeper exits only if it is killed. Its rules and
    /// routes are then left behind, until the next proxy's keeper or the administrator removes them.
    ///
    /// To be called once, in a tokio runtime.
    ///
    /// # Errors
    ///
    /// It was called before, or the runtime can't register the pipe.
    pub fn wait_exit(&mut self) -> io::Result<impl Future<Output = ()> + use<>> {
        let stdout = self.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
        let stdout = pipe::Receiver::from_owned_fd(stdout.into())?;
        Ok(async move {
            // Nothing but EOF is ever read. An error of the pipe counts as EOF.
            while stdout.readable().await.is_ok() {
                match stdout.try_read(&mut [0; 64]) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Ok(0) | Err(_) => break,
                    Ok(_) => {}
                }
            }
        })
    }
}

impl Drop for Keeper {
    /// Closes the pipe and waits until the keeper has removed its rules: a service manager may kill the service's other
    /// processes as soon as the proxy has exited.
    fn drop(&mut self) {
        // `wait` closes standard input first. It fails only where there is no child.
        let _ = self.process.wait();
    }
}

fn first_line(stdout: Option<&mut ChildStdout>) -> io::Result<String> {
    let mut line = String::new();
    if let Some(stdout) = stdout {
        BufReader::new(stdout.take(MAX_ANSWER_LEN)).read_line(&mut line)?;
    }
    Ok(line)
}

/// Why the rules can't be made, for the user of `proxy --setup-routes`.
fn reason(error: &Error) -> String {
    match error {
        Error::Permission(_) => format!(
            "{error}; run `peername routes add` once as root, and the proxy without `--setup-routes`"
        ),
        error => error.to_string(),
    }
}

/// The main function of the keeper process: installs the rules and routes, reports that on standard output, waits for EOF
/// on standard input, and removes exactly what it installed.
///
/// Gives up every capability but CAP_NET_ADMIN, and ignores SIGINT, SIGTERM and SIGHUP: they are sent to whole process
/// groups, and the proxy must exit first. Returns `FAILURE` where the rules can't be installed; the line on standard output
/// is the reason.
///
/// # Errors
///
/// The rules can't be removed, or the runtime can't be started.
pub fn run_keeper(targets: &[Backend]) -> Result<ExitCode, Error> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .map_err(Error::Start)?;
    match runtime.block_on(KeptRoutes::install(targets)) {
        Ok(held) => {
            print_line(READY);
            // Input is discarded; an error counts as EOF.
            let _ = io::copy(&mut io::stdin(), &mut io::sink());
            runtime.block_on(held.release())?;
            Ok(ExitCode::SUCCESS)
        }
        Err(error) => {
            print_line(&reason(&error));
            Ok(ExitCode::FAILURE)
        }
    }
}

/// The rules and routes that this process has installed, and the lock of their slot.
struct KeptRoutes {
    netlink: Netlink,
    installed: InstalledRoutes,
    /// Dropped last: until everything is removed, the slot must not look free.
    _lock: SlotLock,
}

impl KeptRoutes {
    async fn install(targets: &[Backend]) -> Result<Self, Error> {
        caps::keep_only(CapabilitySet::NET_ADMIN)?;
        ignore_signals().map_err(Error::Start)?;
        let netlink = Netlink::open()?;
        let rules = rules_for(&netlink, targets).await?;
        let mut found = None;
        for slot in TableSlot::running() {
            found = try_slot(&netlink, slot, &rules).await?;
            if found.is_some() {
                break;
            }
        }
        if found.is_none() {
            found = try_empty_slots(&netlink, &rules).await?;
        }
        let (installed, lock) = found.ok_or(Error::NoFreeSlot)?;
        Ok(Self {
            netlink,
            installed,
            _lock: lock,
        })
    }

    async fn release(self) -> peername_sys::Result<()> {
        self.installed.undo(&self.netlink).await
    }
}

/// Installs the rules in this slot. `None` where the slot has an owner, or its numbers are used by another program.
async fn try_slot(
    netlink: &Netlink,
    slot: TableSlot,
    rules: &[BackendRule],
) -> Result<Option<(InstalledRoutes, SlotLock)>, Error> {
    let Some(lock) = slot.try_lock().call("bind(AF_UNIX)")? else {
        return Ok(None);
    };
    inventory::remove_leftovers(netlink, slot).await?;
    match InstalledRoutes::install_new(netlink, slot, rules).await {
        Ok(installed) => Ok(Some((installed, lock))),
        Err(Error::Syscall(error)) if netlink::already_exists(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Installs the rules in a slot that is empty, although another process has its name.
async fn try_empty_slots(
    netlink: &Netlink,
    rules: &[BackendRule],
) -> Result<Option<(InstalledRoutes, SlotLock)>, Error> {
    for slot in TableSlot::running() {
        let Some(lock) = slot.try_lock_file() else {
            continue;
        };
        if inventory::is_occupied(netlink, slot).await? {
            continue;
        }
        match InstalledRoutes::install_new(netlink, slot, rules).await {
            Ok(installed) => return Ok(Some((installed, lock))),
            Err(Error::Syscall(error)) if netlink::already_exists(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// Ignores signals to the process group: once tokio has a handler for one, the default action is off until the process
/// exits.
fn ignore_signals() -> io::Result<()> {
    for kind in [
        SignalKind::interrupt(),
        SignalKind::terminate(),
        SignalKind::hangup(),
    ] {
        drop(signal(kind)?);
    }
    Ok(())
}

/// Prints the text as one line. A write error is ignored: where the proxy has exited, EOF on standard input follows.
fn print_line(text: &str) {
    let line = text.replace('\n', " ");
    let _ = writeln!(io::stdout(), "{line}");
}

const READY: &str = "ready";

/// In bytes: longer than any error text, and a bound on what a broken keeper can make the proxy read.
const MAX_ANSWER_LEN: u64 = 4096;
