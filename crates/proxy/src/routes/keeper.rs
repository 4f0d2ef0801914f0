//! The keeper: a second process that installs a running proxy's rules and routes, and removes them when the proxy exits.
//!
//! The proxy gives up CAP_NET_ADMIN before it accepts its first client, so it can't remove its rules when it exits, and a
//! killed process removes nothing at all. The keeper holds that capability and nothing else, and has no network traffic.
//! It restores rules and routes that other programs remove, and reports that on its standard output. EOF on its standard input
//! means that the proxy has exited, for whatever cause.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::num::NonZeroU32;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, ExitCode, Stdio};

use tokio::io::{AsyncBufReadExt, AsyncReadExt, Lines};
use tokio::net::unix::pipe;
use tokio::signal::unix::{SignalKind, signal};

use super::error::{Error, permission_advice};
use super::kept_routes::KeptRoutes;
use super::watch::{self, Monitors};
use crate::backend::Backend;

/// The proxy's handle of its keeper. The rules and routes are installed until this value is dropped or the process exits.
#[derive(Debug)]
pub struct Keeper {
    process: Child,
    /// The keeper's standard output, with its reports once it is ready.
    stdout: Option<ChildStdout>,
}

impl Keeper {
    /// Starts the keeper and returns when the rules and routes are installed.
    ///
    /// Executes this binary again, as `peername routes keep`, so only the `peername` binary may call this function. It must be
    /// called before this process gives up its capabilities: the keeper acquires them in the same way as this process did.
    /// The pipe between the two is close-on-exec, so no other child keeps it open.
    ///
    /// With `marks`, backends may be on other hosts: replies to connections with these marks are delivered here.
    ///
    /// # Errors
    ///
    /// [`Error::Start`] where the process can't be started, [`Error::Keeper`] with the reason that it reports.
    pub fn start(targets: &[Backend], marks: &[NonZeroU32]) -> Result<Self, Error> {
        let mut child = Command::new("/proc/self/exe")
            // The binary chooses its program by argv[0]; this process may run under another name.
            .arg0("peername")
            .args(["routes", "keep"])
            .args(targets.iter().map(|target| format!("--target={target}")))
            .args(marks.iter().map(|mark| format!("--mark={mark}")))
            // ^C sends SIGINT to every process of the foreground group.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(Error::Start)?;
        let mut stdout = child.stdout.take();
        let answer = read_first_line(stdout.as_mut());
        // Constructed before the answer is checked, so that an error drops the value, which waits until a failed keeper has
        // exited.
        let keeper = Self {
            process: child,
            stdout,
        };
        match answer.map_err(Error::Start)?.trim_end() {
            READY => Ok(keeper),
            "" => Err(Error::Keeper(
                "the keeper of the routes exited before it was ready".into(),
            )),
            reason => Err(Error::Keeper(reason.to_owned())),
        }
    }

    /// Takes the keeper's reports. To be called once, in a tokio runtime.
    ///
    /// # Errors
    ///
    /// The reports were taken before, or the runtime can't register the pipe.
    pub fn reports(&mut self) -> io::Result<KeeperReports> {
        let stdout = self.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
        let stdout = pipe::Receiver::from_owned_fd(stdout.into())?;
        Ok(KeeperReports(tokio::io::BufReader::new(stdout).lines()))
    }
}

/// The reports of a running keeper.
#[derive(Debug)]
pub struct KeeperReports(Lines<tokio::io::BufReader<pipe::Receiver>>);

impl KeeperReports {
    /// Waits for the next report: one line, for the log. `None` when the keeper has exited: while the proxy runs, it exits only
    /// if it is killed. Its rules and routes are then left behind, until the next proxy's keeper or the administrator
    /// removes them.
    pub async fn next(&mut self) -> Option<String> {
        // An error of the pipe counts as EOF.
        self.0.next_line().await.ok().flatten()
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

fn read_first_line(stdout: Option<&mut ChildStdout>) -> io::Result<String> {
    let mut line = String::new();
    if let Some(stdout) = stdout {
        // A buffer of one byte: [`KeeperReports`] reads the lines that follow.
        BufReader::with_capacity(1, stdout.take(MAX_ANSWER_BYTES)).read_line(&mut line)?;
    }
    Ok(line)
}

/// The reason why the rules can't be installed, for the user of `proxy --setup-routes`.
fn failure_text(error: &Error) -> String {
    match error {
        Error::Permission(_) => format!(
            "{error}; {}. Or run `peername routes add` once with CAP_NET_ADMIN, then start the proxy with CAP_NET_RAW and without \
             `--setup-routes`",
            permission_advice("run this as root")
        ),
        error => error.to_string(),
    }
}

/// The main function of the keeper process: installs the rules and routes, reports that on standard output, restores them
/// until EOF on standard input, and removes exactly what it installed.
///
/// Gives up every capability but CAP_NET_ADMIN, and ignores the signals that a service manager sends to every process of the
/// service (systemd.kill(5)), because the proxy must exit first. Returns `FAILURE` where the rules can't be installed; the line
/// on standard output is the reason.
///
/// # Errors
///
/// The rules can't be removed, standard input is no pipe, or the runtime can't be started.
pub fn run_keeper(targets: &[Backend], marks: &[NonZeroU32]) -> Result<ExitCode, Error> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Error::Start)?;
    runtime.block_on(async {
        ignore_signals().map_err(Error::Start)?;
        let stdin = open_stdin().map_err(Error::Start)?;
        match KeptRoutes::install(targets, marks).await {
            Ok(kept) => {
                keep(kept, stdin).await?;
                Ok(ExitCode::SUCCESS)
            }
            Err(error) => {
                print_line(&failure_text(&error));
                Ok(ExitCode::FAILURE)
            }
        }
    })
}

/// Opens standard input, which is a pipe from the proxy.
fn open_stdin() -> io::Result<pipe::Receiver> {
    let stdin = io::stdin().as_fd().try_clone_to_owned()?;
    pipe::Receiver::from_owned_fd(stdin)
}

/// Reports that the rules and routes are installed, restores lost ones until EOF on standard input, then removes all.
async fn keep(mut kept: KeptRoutes, stdin: pipe::Receiver) -> Result<(), Error> {
    let mut notes = Vec::from_iter(kept.take_note());
    // Subscribed before READY is reported: only a notification names the program that removes a rule, also right after READY.
    let monitors = Monitors::subscribe(kept.table(), |note| notes.push(note));
    print_line(READY);
    notes.iter().for_each(|note| print_line(note));
    tokio::select! {
        () = wait_eof(stdin) => {}
        () = watch::restore_lost(&kept, monitors, print_line) => {}
    }
    kept.release().await
}

/// Waits for EOF. Discards the input; an error counts as EOF.
async fn wait_eof(mut input: pipe::Receiver) {
    while matches!(input.read(&mut [0; 64]).await, Ok(1..)) {}
}

/// Ignores the signals that a terminal or a service manager sends to all processes, also those that only the proxy handles
/// (`systemctl kill --signal=USR1`): once tokio has installed a handler, the signal has no effect until the process exits, even if
/// the receiver is dropped.
fn ignore_signals() -> io::Result<()> {
    for kind in [
        SignalKind::interrupt(),
        SignalKind::terminate(),
        SignalKind::hangup(),
        SignalKind::user_defined1(),
        SignalKind::user_defined2(),
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

/// The first line of a keeper that has installed the rules and routes.
const READY: &str = "ready";

/// Longer than any error text; bounds what the proxy reads of a broken keeper.
const MAX_ANSWER_BYTES: u64 = 4096;
