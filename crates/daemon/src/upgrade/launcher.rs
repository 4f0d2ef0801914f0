//! The launcher: a child that waits to start the new process of an upgrade.
//!
//! The launcher is forked before the command opens, drops or confines anything. It holds no socket but the one to its parent.
//! It exits when the parent does, and kills a new process that has not taken over then. The new process is its child until the
//! launcher exits, and then of init (or of a subreaper), as a service manager requires of a main process.

use std::env;
use std::ffi::{CStr, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use peername_sys::event::wait_readable;
use peername_sys::ipc::fd_passing;
use peername_sys::process::executable::path_executed;
use peername_sys::process::fork::{
    fork, fork_launcher, set_thread_name, unblock_signals, wait_exit,
};
use peername_sys::process::launch::exit_code;
use peername_sys::process::pidfd::{PidFd, Signal};
use peername_sys::process::{secrets, stderr};

use crate::handover::channel::{Channel, ChannelError};
use crate::handover::message::{CHANNEL_VARIABLE, FromLauncher, ToLauncher, printable};
use crate::usage::error_text::with_causes;

/// The command's handle of its launcher.
#[derive(Debug)]
pub(crate) struct Launcher {
    channel: Channel,
    pid: u32,
}

impl Launcher {
    /// Forks the launcher. User names and passwords in the arguments are masked in this process and in the launcher, but not in
    /// the new process of an upgrade, which needs them.
    pub(crate) fn fork() -> anyhow::Result<Self> {
        ensure!(
            std::process::id() != 1,
            "this process is PID 1, and its container ends with it: replace the container instead"
        );
        let program = Program {
            path: path_executed().context("the path of this program")?,
            args: env::args_os().collect(),
        };
        // The launcher has memory of its own, in which this process could mask nothing later.
        secrets::mask_arguments()?;
        let (channel, theirs) = Channel::pair()?;
        let pid = fork_launcher([theirs], |[theirs]| {
            set_thread_name(THREAD_NAME);
            program.serve(&theirs.into());
            0
        })?;
        Ok(Self { channel, pid })
    }

    /// Starts the new process, and returns its process id.
    pub(crate) fn start(&self, their_end: OwnedFd) -> anyhow::Result<u32> {
        self.channel.set_time_limit(LAUNCHER_LIMIT)?;
        let sent = self.channel.send(&ToLauncher::Launch, &[their_end.as_fd()]);
        let answer = sent.and_then(|()| self.channel.receive());
        let (answer, _) = answer.context("the launcher, a child of this process, was killed")?;
        match answer {
            FromLauncher::Started(pid) => Ok(pid),
            FromLauncher::Ended(how) => anyhow::bail!(how),
        }
    }

    /// Ends the new process, unless it exits by itself in this time, and returns how it ended.
    pub(crate) fn stop(&self, grace: Duration) -> String {
        let stop = || -> Result<String, ChannelError> {
            self.channel.set_time_limit(grace + LAUNCHER_LIMIT)?;
            self.channel.send(&ToLauncher::Stop(grace), &[])?;
            match self.channel.receive()? {
                (FromLauncher::Ended(how), _) => Ok(how),
                (FromLauncher::Started(_), _) => Ok(String::new()),
            }
        };
        stop().unwrap_or_else(|error| format!("the launcher: {error}"))
    }

    /// Ends the launcher, and leaves the new process to init. The new process has a launcher of its own for the next upgrade.
    pub(crate) fn release(self) {
        let Self { channel, pid } = self;
        let _ = channel.send(&ToLauncher::Release, &[]);
        drop(channel);
        // Once the launcher is reaped, the new process has its new parent.
        let _ = wait_exit(pid);
    }
}

/// The program to start, as this process was started.
struct Program {
    path: PathBuf,
    args: Vec<OsString>,
}

/// A started process.
struct Started {
    pid: u32,
    process: PidFd,
    /// Its standard error, until it gets that of the old process.
    stderr: File,
    last_line: LastLine,
}

impl Program {
    /// The launcher's main function.
    fn serve(&self, parent: &Channel) {
        // Nothing is received once the parent has exited.
        while let Ok((message, fds)) = parent.receive() {
            let ToLauncher::Launch = message else {
                continue;
            };
            let Some(their_end) = fds.into_iter().next() else {
                return;
            };
            let supervised = match self.start(&their_end) {
                Ok(started) => {
                    drop(their_end);
                    started.supervise(parent)
                }
                Err(error) => parent.send(&FromLauncher::Ended(with_causes(&error)), &[]),
            };
            if supervised.is_err() {
                return;
            }
        }
    }

    fn start(&self, their_end: &OwnedFd) -> anyhow::Result<Started> {
        let (reader, writer) = io::pipe().context("pipe2(2)")?;
        fd_passing::clear_close_on_exec(their_end)?;
        let pid = fork(|| self.execute(their_end, writer.as_fd()))?;
        let reader = OwnedFd::from(reader);
        Ok(Started {
            pid,
            process: PidFd::open(pid)?,
            stderr: File::from(reader),
            last_line: LastLine::default(),
        })
    }

    /// Becomes the new process. Its errors are the last line of its standard error.
    fn execute(&self, their_end: &OwnedFd, stderr: BorrowedFd<'_>) -> u8 {
        let _ = stderr::replace(stderr);
        unblock_signals();
        let channel = format!("{}:{}", std::process::id(), their_end.as_raw_fd());
        let mut command = Command::new(&self.path);
        if let [name, args @ ..] = self.args.as_slice() {
            command.arg0(name).args(args);
        }
        let error = command
            .env(CHANNEL_VARIABLE, channel)
            // These variables name the old process.
            .env_remove("LISTEN_PID")
            .env_remove("LISTEN_FDS")
            .env_remove("LISTEN_FDNAMES")
            .env_remove("WATCHDOG_PID")
            .exec();
        stderr::write_line(format_args!("{}: {error}", self.path.display()));
        exit_code::NOT_EXECUTABLE
    }
}

impl Started {
    /// Waits until the process has exited or is released. Kills it if the parent ends before: it would hold the listening
    /// sockets, and accept nothing, until it notices. An error means that the launcher has nothing left to do.
    fn supervise(mut self, parent: &Channel) -> Result<(), ChannelError> {
        let ended = self.wait_end(parent);
        if ended.is_err() {
            let _ = self.process.signal(Signal::KILL);
        }
        ended
    }

    fn wait_end(&mut self, parent: &Channel) -> Result<(), ChannelError> {
        parent.send(&FromLauncher::Started(self.pid), &[])?;
        let mut kill_at = None;
        let mut stderr_is_open = true;
        loop {
            let stderr = stderr_is_open.then_some(self.stderr.as_fd());
            let fds = [parent.as_fd(), self.process.as_fd()];
            let limit = kill_at.map(|at: Instant| at.saturating_duration_since(Instant::now()));
            wait_readable(fds.into_iter().chain(stderr), limit)?;
            stderr_is_open = stderr_is_open && self.copy_stderr()?;
            if self.process.has_exited() {
                while stderr_is_open && is_readable(&self.stderr) {
                    stderr_is_open = self.copy_stderr()?;
                }
                let ended = FromLauncher::Ended(self.last_line.describe_exit(wait_exit(self.pid)?));
                return parent.send(&ended, &[]);
            }
            if is_readable(parent) {
                match parent.receive()?.0 {
                    ToLauncher::Stop(grace) => kill_at = Some(Instant::now() + grace),
                    ToLauncher::Release => return Ok(()),
                    ToLauncher::Launch => {}
                }
            }
            if kill_at.is_some_and(|at| at <= Instant::now()) {
                let _ = self.process.signal(Signal::KILL);
            }
        }
    }

    /// Passes on what the process has printed. Returns whether it may print more.
    fn copy_stderr(&mut self) -> Result<bool, ChannelError> {
        if !is_readable(&self.stderr) {
            return Ok(true);
        }
        let mut bytes = [0; 4096];
        let len = self.stderr.read(&mut bytes).unwrap_or(0);
        let bytes = bytes.get(..len).unwrap_or_default();
        let _ = io::stderr().write_all(bytes);
        self.last_line.push(bytes);
        Ok(len > 0)
    }
}

/// The last bytes that a process has printed, for its last line.
#[derive(Default)]
struct LastLine(Vec<u8>);

impl LastLine {
    fn push(&mut self, bytes: &[u8]) {
        self.0.extend(bytes);
        let excess = self.0.len().saturating_sub(MAX_LINE);
        self.0.drain(..excess);
    }

    /// Returns the exit status with the error that was printed, or else with the last line.
    fn describe_exit(&self, status: ExitStatus) -> String {
        let text = String::from_utf8_lossy(&self.0);
        let mut last_first = text.lines().rev().filter(|line| !line.trim().is_empty());
        // A hint may follow the error.
        let error = last_first.clone().find(|line| line.starts_with("error:"));
        match error.or_else(|| last_first.next()) {
            Some(line) => format!("{status}: {}", printable(line)),
            None => status.to_string(),
        }
    }
}

fn is_readable(fd: &impl AsFd) -> bool {
    wait_readable([fd.as_fd()], Some(Duration::ZERO)).unwrap_or(false)
}

/// The name of the launcher's process.
pub(crate) const NAME: &str = "launcher";
const THREAD_NAME: &CStr = c"launcher";
/// Time limit for an answer of the launcher, which answers at once.
const LAUNCHER_LIMIT: Duration = Duration::from_secs(5);
const MAX_LINE: usize = 4096;
