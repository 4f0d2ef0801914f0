//! Requests of `peername upgrade`: SIGUSR2, and the report of the process about the outcome.
//!
//! There is no socket, so no other user can send this process anything: kill(2) decides who may request an upgrade, and
//! ptrace(2) who may read the report (`sys/src/ipc/record_pipe.rs`).

use std::fs;
use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use peername_sys::event::wait_readable;
use peername_sys::ipc::record_pipe::{RecordPipe, RecordReader};
use peername_sys::process::pidfd::{PidFd, Signal};
use serde::{Deserialize, Serialize};

use super::launcher::NAME as LAUNCHER;
use crate::handover::message::printable;

/// Reports the upgrades of this process to those that have requested them.
#[derive(Debug)]
pub struct UpgradeReport {
    /// `None` if it can't be opened: then only the log has the outcome.
    pipe: Option<RecordPipe>,
    report: Report,
}

#[derive(Debug, Default, Deserialize, Serialize)]
struct Report {
    /// How many upgrades have begun.
    begun: u64,
    /// How many of them were refused.
    refused: u64,
    state: State,
}

#[derive(Debug, Default, Deserialize, Serialize)]
enum State {
    #[default]
    Serving,
    /// The last upgrade was refused, for this reason.
    Refused(String),
    /// The process with this id serves instead.
    Replaced(u32),
    Stopping,
}

impl UpgradeReport {
    /// Opens the report. From now on the process must handle SIGUSR2.
    pub fn open() -> Self {
        let report = Self {
            pipe: RecordPipe::new().ok(),
            report: Report::default(),
        };
        report.publish();
        report
    }

    /// Reports that an upgrade begins.
    pub(crate) fn begin(&mut self) {
        self.report.begun += 1;
        self.publish();
    }

    /// Reports the outcome: the new process's id, or why there is none.
    pub(crate) fn end(&mut self, outcome: &Result<u32, String>) {
        self.report.state = match outcome {
            Ok(pid) => State::Replaced(*pid),
            Err(why) => State::Refused(printable(why).chars().take(MAX_REASON).collect()),
        };
        self.report.refused += u64::from(outcome.is_err());
        self.publish();
    }

    /// Reports that this process ends, and that no other one replaces it.
    pub fn stop(&mut self) {
        self.report.state = State::Stopping;
        self.publish();
    }

    fn publish(&self) {
        if let (Some(pipe), Ok(record)) = (&self.pipe, serde_json::to_vec(&self.report)) {
            let _ = pipe.replace(&record);
        }
    }
}

/// Requests an upgrade of process `pid`, waits for the outcome and returns the new process's id.
pub fn request(pid: u32) -> anyhow::Result<u32> {
    let process = PidFd::open(pid).with_context(|| format!("process {pid}"))?;
    refuse_launcher(pid)?;
    let (reports, before) = find_report(pid)?;
    match before.state {
        State::Serving | State::Refused(_) => {}
        State::Replaced(new) => bail!("process {pid} is stopping: process {new} serves instead"),
        State::Stopping => bail!("process {pid} is stopping"),
    }
    process
        .signal(Signal::USR2)
        .with_context(|| format!("process {pid} (run as root, or as its user)"))?;
    loop {
        let has_exited = wait_readable([process.as_fd()], Some(POLL_INTERVAL))?;
        let report = read(&reports)?;
        match report.map(|report| (report.refused, report.state)) {
            Some((_, State::Replaced(new))) => return Ok(new),
            Some((_, State::Stopping)) => bail!("process {pid} is stopping"),
            // The refused upgrade began after the report `before` was read.
            Some((refused, State::Refused(why))) if refused > before.begun => {
                bail!("process {pid} goes on: {}", printable(&why))
            }
            _ if has_exited => bail!("process {pid} has ended without an answer"),
            _ => {}
        }
    }
}

/// Finds the report of a process, and reads it.
fn find_report(pid: u32) -> anyhow::Result<(RecordReader, Report)> {
    let readers = RecordReader::of_process(pid).map_err(|error| match error.kind() {
        ErrorKind::PermissionDenied => {
            anyhow!("process {pid} belongs to another user, or has more privileges: run as root, or as its user")
        }
        _ => anyhow!("process {pid}: open(/proc/{pid}/fd): {error}"),
    })?;
    for reader in readers {
        if let Some(report) = read(&reader)? {
            return Ok((reader, report));
        }
    }
    bail!(
        "process {pid} takes no requests to upgrade: it is no `peername proxy`, `forward` or `intercept`"
    )
}

/// Reads the report. Returns `None` while the report is being replaced, and for a pipe that holds something else.
fn read(reader: &RecordReader) -> anyhow::Result<Option<Report>> {
    let record = reader.read()?;
    Ok(record.and_then(|record| serde_json::from_slice(&record).ok()))
}

/// Refuses the launcher of a process, which `pgrep` lists, too.
fn refuse_launcher(pid: u32) -> anyhow::Result<()> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"));
    let status = status.with_context(|| format!("process {pid}"))?;
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
    if let (Some(LAUNCHER), Some(parent)) = (field("Name:").map(str::trim), field("PPid:")) {
        let parent = parent.trim();
        bail!("process {pid} is a helper of process {parent}: use --pid {parent}");
    }
    Ok(())
}

/// In characters, each of four bytes at most, so that the report fits into a record.
const MAX_REASON: usize = 1000;
const POLL_INTERVAL: Duration = Duration::from_millis(10);
