//! A second process that holds a running proxy's rules and routes, and outlives it by a moment.
//!
//! The proxy gives up CAP_NET_ADMIN before it accepts its first client, so it can't remove at its end
//! what was made at its start; and a process that is killed removes nothing at all. The keeper can:
//! it holds the capability and nothing else, talks to nobody, and learns of the proxy's end, whatever
//! its cause, by the end of its standard input.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, ExitCode, Stdio};

use peername_sys::NameCall;
use peername_sys::netlink::{self, Netlink};
use peername_sys::process::caps::{self, Capability};
use tokio::net::unix::pipe;
use tokio::signal::unix::{SignalKind, signal};

use super::backend_rule::{BackendRule, rules_for};
use super::error::Error;
use super::install::InstalledRoutes;
use super::inventory;
use super::table_slot::{SlotLock, TableSlot};
use crate::backend::Backend;

/// A running proxy's hold on its rules and routes: they are there until this value is dropped, or
/// the process ends in any other way.
#[derive(Debug)]
pub struct Keeper {
    process: Child,
    /// What it says to us, which is nothing more once it is ready.
    stdout: Option<ChildStdout>,
}

impl Keeper {
    /// Starts the keeper and returns when the rules and routes stand.
    ///
    /// Runs this very binary again, as `peername routes keep`; so call it from the `peername` binary
    /// only, and before capabilities are given up, because the keeper gets its own the way this
    /// process did. The pipe that ties the two is closed on exec, so no other child holds it open.
    pub fn start<B: Into<Backend> + Copy>(targets: &[B]) -> Result<Self, Error> {
        let targets = targets.iter().map(|&target| target.into());
        let mut child = Command::new("/proc/self/exe")
            // The name decides what the binary does; that of this process may be another's.
            .arg0("peername")
            .args(["routes", "keep"])
            .args(targets.map(|target: Backend| format!("--target={target}")))
            // ^C goes to every process of the foreground group.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(Error::Start)?;
        let mut stdout = child.stdout.take();
        let answer = first_line(stdout.as_mut());
        // Dropping it before looking at the answer: a keeper that failed has ended, or ends by this.
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
    /// Returns when the keeper has ended, which it does by itself only after the proxy: it was killed.
    /// Its rules and routes stay behind until somebody removes them, such as the next proxy's keeper.
    ///
    /// To be called once, in a tokio runtime.
    pub fn wait_exit(&mut self) -> io::Result<impl Future<Output = ()> + use<>> {
        let stdout = self.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
        let stdout = pipe::Receiver::from_owned_fd(stdout.into())?;
        Ok(async move {
            // Nothing ever comes but the end. An error of such a pipe is an end as well.
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
    /// Closes the pipe and waits until the keeper has cleaned up: a service manager may kill what is
    /// left of the service as soon as the proxy has ended.
    fn drop(&mut self) {
        // `wait` closes standard input first. An error would mean that there is no child.
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

/// What the keeper process does: makes the rules and routes, says so on standard output, waits for
/// the end of standard input, and removes exactly what it made.
///
/// Gives up every capability but CAP_NET_ADMIN, and pays no attention to SIGINT, SIGTERM and SIGHUP:
/// they are sent to whole groups of processes, and the proxy must be the first to go. `FAILURE` when
/// the rules can't be made, and then the line on standard output is the reason; an error when they
/// can't be removed.
pub fn run_keeper(targets: &[Backend]) -> Result<ExitCode, Error> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .map_err(Error::Start)?;
    match runtime.block_on(KeptRoutes::install(targets)) {
        Ok(held) => {
            print_line(READY);
            // Whatever comes is thrown away; an error is an end as well.
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

/// Rules and routes in a slot that is ours.
struct KeptRoutes {
    netlink: Netlink,
    made: InstalledRoutes,
    /// Goes last: until everything is removed the slot must not look free.
    _lock: SlotLock,
}

impl KeptRoutes {
    async fn install(targets: &[Backend]) -> Result<Self, Error> {
        caps::keep_only(&[Capability::CAP_NET_ADMIN])?;
        ignore_signals().map_err(Error::Start)?;
        let netlink = Netlink::open()?;
        let rules = rules_for(&netlink, targets).await?;
        for slot in TableSlot::running() {
            if let Some((made, lock)) = try_slot(&netlink, slot, &rules).await? {
                return Ok(Self {
                    netlink,
                    made,
                    _lock: lock,
                });
            }
        }
        Err(Error::NoFreeSlot)
    }

    async fn release(self) -> peername_sys::Result<()> {
        self.made.undo(&self.netlink).await
    }
}

/// `None` when the slot has an owner, or its numbers are used by somebody else.
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
        Ok(made) => Ok(Some((made, lock))),
        Err(Error::Failed(error)) if netlink::already_exists(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Once tokio has a handler for a signal, the default action is off for the rest of the process.
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

/// One line, whatever the text. Nobody listening is noticed at the end of standard input.
fn print_line(text: &str) {
    let line = text.replace('\n', " ");
    let _ = writeln!(io::stdout(), "{line}");
}

const READY: &str = "ready";

/// Longer than any error text; it bounds what a broken keeper can make the proxy read.
const MAX_ANSWER_LEN: u64 = 4096;
