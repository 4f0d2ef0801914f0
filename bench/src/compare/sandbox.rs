//! A sandbox: a process in namespaces of its own that sets up one cell (one contestant, one case) and measures on
//! command, so that several contestants can take short turns.
//!
//! Protocol: the sandbox prints an empty line when it is ready. Each line on its standard input starts a
//! measurement; its result is a line of JSON on standard output. At the end of its input it exits. However it
//! exits, the kernel kills everything that it started.

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::compare::measurement::Measurement;
use crate::host::namespace;

/// The arguments of `peername-bench cell`, `intercept-cell` and `jail-cell`.
#[derive(clap::Args)]
pub(crate) struct CellArgs {
    /// What to measure, as JSON
    cell: String,
}

impl CellArgs {
    /// Parses the description of the cell.
    pub(crate) fn parse<C: DeserializeOwned>(&self) -> Result<C> {
        serde_json::from_str(&self.cell).context("the description of the cell")
    }
}

/// A sandbox that is ready to measure. Dropping it ends the process.
pub(crate) struct Sandbox {
    child: Child,
    /// None once the sandbox was told to exit, by the end of its input.
    commands: Option<ChildStdin>,
    output: Receiver<String>,
    timeout: Duration,
    _directory: WorkDirectory,
}

impl Sandbox {
    /// Starts `peername-bench SUBCOMMAND CELL` in namespaces of its own, and waits until it is ready. The cell gets
    /// an empty directory below `out`, which is removed afterwards. `timeout` applies to the set-up and to each
    /// measurement.
    pub(crate) fn set_up<C: Serialize>(
        subcommand: &str,
        out: &Path,
        timeout: Duration,
        cell: impl FnOnce(&Path) -> C,
    ) -> Result<Self> {
        let directory = WorkDirectory::create_below(out)?;
        let program = std::env::current_exe().context("own path")?;
        let mut child = namespace::isolated_command(&program)
            .arg(subcommand)
            .arg(serde_json::to_string(&cell(&directory.0))?)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("run setpriv and unshare, of util-linux")?;
        let commands = child.stdin.take();
        let output = read_lines(child.stdout.take().context("no standard output")?);
        let mut sandbox = Self {
            child,
            commands,
            output,
            timeout,
            _directory: directory,
        };
        sandbox.wait_for_line()?;
        Ok(sandbox)
    }

    /// Runs one measurement and waits for its result.
    ///
    /// # Errors
    /// The measurement failed, with its error message, or took too long. The sandbox can't be used afterwards.
    pub(crate) fn measure(&mut self) -> Result<Measurement> {
        if let Some(commands) = &mut self.commands {
            // If the sandbox has failed already, its error message is read below.
            let _ = commands.write_all(b"\n");
        }
        let line = self.wait_for_line()?;
        serde_json::from_str(&line).with_context(|| format!("it printed {line:?}"))
    }

    fn wait_for_line(&mut self) -> Result<String> {
        match self.output.recv_timeout(self.timeout) {
            Ok(line) => Ok(line),
            Err(RecvTimeoutError::Timeout) => bail!("not done within {:?}", self.timeout),
            Err(RecvTimeoutError::Disconnected) => Err(self.error_message()),
        }
    }

    /// Returns what the sandbox printed to standard error before it exited.
    fn error_message(&mut self) -> anyhow::Error {
        self.commands = None;
        let mut message = String::new();
        if let Some(stderr) = &mut self.child.stderr {
            // A partial message is better than none.
            let _ = stderr.read_to_string(&mut message);
        }
        let message = message.trim().trim_start_matches("peername-bench: ");
        anyhow!("{message}")
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        self.commands = None;
        // Killing the outermost process ends all inside.
        if self.output.recv_timeout(EXIT_TIMEOUT) != Err(RecvTimeoutError::Disconnected) {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}

/// The sandbox's side of the protocol: reports that the cell is ready, then measures for each command and prints the
/// result. Turns are counted from 0.
pub(crate) fn serve_commands(mut measure: impl FnMut(u32) -> Result<Measurement>) -> Result<()> {
    println!();
    for (turn, command) in (0..).zip(io::stdin().lines()) {
        command.context("standard input")?;
        println!("{}", serde_json::to_string(&measure(turn)?)?);
    }
    Ok(())
}

/// Reads output line by line, in a thread, so that waiting for a line can time out.
fn read_lines(output: ChildStdout) -> Receiver<String> {
    let (send, lines) = channel();
    thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            if send.send(line).is_err() {
                return;
            }
        }
    });
    lines
}

/// An empty directory, removed on drop.
struct WorkDirectory(PathBuf);

impl WorkDirectory {
    fn create_below(out: &Path) -> Result<Self> {
        let number = NEXT_DIRECTORY.fetch_add(1, Ordering::Relaxed);
        let name = format!("work-{}-{number}", std::process::id());
        let path = std::path::absolute(out.join(name))?;
        fs::create_dir_all(&path).with_context(|| format!("create {}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for WorkDirectory {
    fn drop(&mut self) {
        // A directory that stays behind does no harm.
        let _ = fs::remove_dir_all(&self.0);
    }
}

static NEXT_DIRECTORY: AtomicU32 = AtomicU32::new(0);

/// How long a sandbox may take to exit by itself.
const EXIT_TIMEOUT: Duration = Duration::from_secs(5);
