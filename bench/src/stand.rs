//! A measurement that stands ready: a process in namespaces of its own, with everything that it needs started. It
//! measures whenever it is told to, so that several can take short turns.
//!
//! It prints a line when it is ready. A line to its standard input is the word to measure, and the outcome is a line
//! of JSON on its standard output. When its input ends, so does it, and with it, however it ends, all that it started.

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

use crate::cell::Outcome;
use crate::namespace;

/// One that stands ready, ended with its guard.
pub(crate) struct Stand {
    child: Child,
    /// None once it has been told to end.
    told: Option<ChildStdin>,
    said: Receiver<String>,
    patience: Duration,
    _directory: Directory,
}

impl Stand {
    /// Runs `peername-bench SUBCOMMAND CELL` in namespaces of its own, and returns once it is ready. The cell is given
    /// an empty directory below `out`, which is removed afterwards; `patience` is how long getting ready and each
    /// measurement may take.
    ///
    /// # Errors
    /// The directory could not be made, the process not be started, or it failed, with what it complained of.
    pub(crate) fn set_up<C: Serialize>(
        subcommand: &str,
        out: &Path,
        patience: Duration,
        cell: impl FnOnce(&Path) -> C,
    ) -> Result<Self> {
        let directory = Directory::below(out)?;
        let program = std::env::current_exe().context("own path")?;
        let mut child = namespace::enter(&program)
            .arg(subcommand)
            .arg(serde_json::to_string(&cell(&directory.0))?)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("run setpriv and unshare, of util-linux")?;
        let told = child.stdin.take();
        let said = lines_of(child.stdout.take().context("no standard output")?);
        let mut stand = Self {
            child,
            told,
            said,
            patience,
            _directory: directory,
        };
        stand.hear()?;
        Ok(stand)
    }

    /// Has it measure, and takes down what it said.
    ///
    /// # Errors
    /// It failed, with what it complained of, or took too long. It is not to be asked again then.
    pub(crate) fn measure(&mut self) -> Result<Outcome> {
        if let Some(told) = &mut self.told {
            // What it has already failed of is read below.
            let _ = told.write_all(b"\n");
        }
        let line = self.hear()?;
        serde_json::from_str(&line).with_context(|| format!("it said {line:?}"))
    }

    fn hear(&mut self) -> Result<String> {
        match self.said.recv_timeout(self.patience) {
            Ok(line) => Ok(line),
            Err(RecvTimeoutError::Timeout) => bail!("not done within {:?}", self.patience),
            Err(RecvTimeoutError::Disconnected) => Err(self.complaint()),
        }
    }

    /// Why it has ended.
    fn complaint(&mut self) -> anyhow::Error {
        self.told = None;
        let mut complaint = String::new();
        if let Some(stderr) = &mut self.child.stderr {
            // Half of a complaint is better than none.
            let _ = stderr.read_to_string(&mut complaint);
        }
        let complaint = complaint.trim().trim_start_matches("peername-bench: ");
        anyhow!("{complaint}")
    }
}

impl Drop for Stand {
    fn drop(&mut self) {
        self.told = None;
        // Killing the outermost process ends all inside.
        if self.said.recv_timeout(FAREWELL) != Err(RecvTimeoutError::Disconnected) {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}

/// Inside of it: says that all is ready, measures as often as there is a word to, and prints the outcomes. Turns are
/// counted from 0.
///
/// # Errors
/// Those of `measure`, or of the standard streams.
pub(crate) fn take_turns(mut measure: impl FnMut(u32) -> Result<Outcome>) -> Result<()> {
    println!();
    for (turn, word) in (0..).zip(io::stdin().lines()) {
        word.context("standard input")?;
        println!("{}", serde_json::to_string(&measure(turn)?)?);
    }
    Ok(())
}

/// What it prints, line by line, read by a thread so that nobody waits for ever.
fn lines_of(output: ChildStdout) -> Receiver<String> {
    let (send, said) = channel();
    thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            if send.send(line).is_err() {
                return;
            }
        }
    });
    said
}

/// An empty directory, removed with its guard.
struct Directory(PathBuf);

impl Directory {
    fn below(out: &Path) -> Result<Self> {
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let name = format!("work-{}-{number}", std::process::id());
        let path = std::path::absolute(out.join(name))?;
        fs::create_dir_all(&path).with_context(|| format!("create {}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // It is only litter.
        let _ = fs::remove_dir_all(&self.0);
    }
}

static MADE: AtomicU32 = AtomicU32::new(0);

/// How long one may take to end by itself.
const FAREWELL: Duration = Duration::from_secs(5);
