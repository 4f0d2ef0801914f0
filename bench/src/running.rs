//! A server among the processes of a measurement.

use std::fs::{self, File};
use std::net::SocketAddrV4;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::load::Transport;
use crate::procfs::ProcessTree;
use crate::sockets;

/// A server that is ended with its guard.
pub(crate) struct Running {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Running {
    /// Returns once something listens at `at`. What the server prints goes to `directory`.
    ///
    /// # Errors
    /// It can't be started, ended, or does not listen in time; with the end of what it printed.
    pub(crate) fn start(
        name: &str,
        mut command: Command,
        directory: &Path,
        (transport, at): (Transport, SocketAddrV4),
    ) -> Result<Self> {
        let log = directory.join(format!("{name}.log"));
        let file = File::create(&log).with_context(|| format!("create {}", log.display()))?;
        command
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file);
        let child = command.spawn().with_context(|| format!("start {name}"))?;
        let mut running = Self {
            name: name.to_owned(),
            child,
            log,
        };
        let deadline = Instant::now() + START;
        while !sockets::table(transport)?
            .iter()
            .any(|entry| entry.is_listening && entry.local == at)
        {
            let ended = running.child.try_wait()?;
            if ended.is_some() || Instant::now() > deadline {
                bail!("{name} does not listen on {at}; {}", running.last_words());
            }
            sleep(GLANCE);
        }
        // The other workers' listeners follow the first.
        sleep(SETTLE);
        Ok(running)
    }

    /// It and its descendants.
    pub(crate) fn tree(&self) -> ProcessTree {
        ProcessTree::of(self.child.id())
    }

    /// The end of what it printed: usually why it failed.
    pub(crate) fn last_words(&self) -> String {
        let said = fs::read_to_string(&self.log).unwrap_or_default();
        let start = said.len().saturating_sub(LAST_WORDS);
        match said.get(said.ceil_char_boundary(start)..).map(str::trim) {
            None | Some("") => format!("{} said nothing", self.name),
            Some(end) => format!("{} said: {end}", self.name),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Bytes of a log that are shown. Some servers complain once a connection.
const LAST_WORDS: usize = 1000;

/// A start that takes longer has failed.
const START: Duration = Duration::from_secs(5);

/// How often a start is looked at.
const GLANCE: Duration = Duration::from_millis(5);

/// From a server's first listener to its last, generously.
const SETTLE: Duration = Duration::from_millis(100);
