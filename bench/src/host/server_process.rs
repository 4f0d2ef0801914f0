//! A server process of a cell: started, waited for, and killed on drop.

use std::fs::{self, File};
use std::net::SocketAddrV4;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::host::procfs::ProcessTree;
use crate::host::sockets;
use crate::wire::transport::Transport;

/// A running server, killed on drop.
pub(crate) struct ServerProcess {
    name: String,
    child: Child,
    log: PathBuf,
}

impl ServerProcess {
    /// Starts a server and waits until it listens at `address`. Its output goes to a log in `directory`.
    pub(crate) fn start(
        name: &str,
        mut command: Command,
        directory: &Path,
        (transport, address): (Transport, SocketAddrV4),
    ) -> Result<Self> {
        let log = directory.join(format!("{name}.log"));
        let file = File::create(&log).with_context(|| format!("create {}", log.display()))?;
        command
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file);
        let child = command.spawn().with_context(|| format!("start {name}"))?;
        let mut server = Self {
            name: name.to_owned(),
            child,
            log,
        };
        let deadline = Instant::now() + START_TIMEOUT;
        while !sockets::read_table(transport)?
            .iter()
            .any(|entry| entry.is_listening && entry.local == address)
        {
            let ended = server.child.try_wait()?;
            if ended.is_some() || Instant::now() > deadline {
                bail!("{name} does not listen on {address}; {}", server.log_tail());
            }
            sleep(POLL_INTERVAL);
        }
        // The other workers' listeners follow the first.
        sleep(WORKER_START_TIME);
        Ok(server)
    }

    /// The process and its descendants.
    pub(crate) fn tree(&self) -> ProcessTree {
        ProcessTree::of(self.child.id())
    }

    /// The end of its log: usually the reason for a failure.
    pub(crate) fn log_tail(&self) -> String {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let start = log.len().saturating_sub(LOG_TAIL_BYTES);
        match log.get(log.ceil_char_boundary(start)..).map(str::trim) {
            None | Some("") => format!("{} printed nothing", self.name),
            Some(end) => format!("{} printed: {end}", self.name),
        }
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Bytes of a log that are printed. Some servers log an error for each connection.
const LOG_TAIL_BYTES: usize = 1000;

/// A server that takes longer to listen has failed to start.
const START_TIMEOUT: Duration = Duration::from_secs(5);

/// How often the socket table is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// From a server's first listener to its last one, generously.
const WORKER_START_TIME: Duration = Duration::from_millis(100);
