//! The old process's side of an upgrade: starts the new process and hands over.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use peername_sys::ipc::fd_passing::MAX_FDS;
use tokio::task::spawn_blocking;

use super::launcher::Launcher;
use crate::handover::channel::{Channel, ChannelError};
use crate::handover::message::{
    Inheritance, SharedSocket, SocketInfo, ToPredecessor, ToSuccessor, VERSION,
};
use crate::service_manager;
use crate::usage::error_text::with_causes;

/// Starts new processes of this command.
#[derive(Debug)]
pub struct Upgrader {
    /// The subcommand.
    command: &'static str,
    /// `Err` with the reason if there is no launcher.
    launcher: Result<Launcher, String>,
}

/// A new process that is prepared, and waits for the sessions. Dropping this ends it.
#[derive(Debug)]
pub(crate) struct Successor {
    launcher: Launcher,
    channel: Arc<Channel>,
    /// Its process id.
    pub(crate) pid: u32,
    /// The sockets that it has adopted.
    pub(crate) adopted: Vec<SocketInfo>,
}

/// A new process that has the sessions, and takes over in any case: dropping this lets it serve. Otherwise it would exit with this
/// process if a failure ended this one before, and nothing would listen any more.
#[derive(Debug)]
pub(crate) struct Released {
    channel: Arc<Channel>,
    pid: u32,
    inheritance: Inheritance,
}

impl Released {
    /// Lets the new process serve, with this state instead of that at its release.
    pub(crate) fn serve(mut self, inheritance: Inheritance) {
        self.inheritance = inheritance;
    }
}

impl Drop for Released {
    fn drop(&mut self) {
        let (serve, pid) = (ToSuccessor::Serve(self.inheritance.clone()), self.pid);
        // If the new process has died since it was ready, nothing listens; the service manager sees its main process end.
        if let Err(error) = self.channel.send(&serve, &[]) {
            tracing::error!(
                "the new process {pid} could not be told to serve ({error}): if it has ended, nothing listens"
            );
        }
    }
}

/// Why the old process goes on, and its launcher for the next attempt.
type Refused = (Launcher, anyhow::Error);

impl Successor {
    /// Returns the channel to this process, for sessions.
    pub(crate) fn session_channel(&self) -> anyhow::Result<Arc<Channel>> {
        self.channel.set_time_limit(SESSIONS_LIMIT)?;
        Ok(Arc::clone(&self.channel))
    }

    /// Releases the new process from the launcher, and makes it the main process for the service manager.
    fn release(self, inheritance: Inheritance) -> Released {
        self.launcher.release();
        service_manager::hand_over_to(self.pid);
        Released {
            channel: self.channel,
            pid: self.pid,
            inheritance,
        }
    }
}

impl Upgrader {
    pub(crate) fn new(command: &'static str, launcher: anyhow::Result<Launcher>) -> Self {
        Self {
            command,
            launcher: launcher.map_err(|error| with_causes(&error)),
        }
    }

    /// An upgrader that fails with this reason.
    pub fn unavailable(reason: &str) -> Self {
        Self::new("", Err(anyhow!("{reason}")))
    }

    /// Starts the binary that is at this process's path now, hands it these sockets, and waits until it is prepared. If the
    /// future is dropped, the new process ends.
    ///
    /// # Errors
    ///
    /// The new process did not become ready; nothing was changed.
    pub(crate) async fn start_successor(
        &mut self,
        sockets: Vec<SharedSocket>,
        timeout: Duration,
    ) -> anyhow::Result<Successor> {
        let deadline = Instant::now() + timeout;
        // File systems that hang may keep all threads. Then the attempt would not begin, and hold the launcher.
        let thread = tokio::time::timeout(timeout, spawn_blocking(|| ())).await;
        thread.map_err(|_| {
            anyhow!("no thread was free within {timeout:?}: the file systems of lists hang")
        })??;
        let (channel, theirs) = Channel::pair()?;
        let mut interrupt = InterruptOnDrop(Some(channel.try_clone()?));
        let busy = Err("an upgrade was interrupted".to_owned());
        let launcher = match std::mem::replace(&mut self.launcher, busy) {
            Ok(launcher) => launcher,
            Err(why) => {
                self.launcher = Err(why.clone());
                bail!(why);
            }
        };
        let hello = ToSuccessor::Hello {
            version: VERSION,
            command: self.command.to_owned(),
        };
        let started = spawn_blocking(move || {
            start(
                launcher, channel, theirs, &hello, &sockets, deadline, timeout,
            )
        })
        .await;
        match started.context("the thread that starts the new process")? {
            Ok(successor) => {
                interrupt.0 = None;
                Ok(successor)
            }
            Err(refused) => Err(self.keep_launcher(refused)),
        }
    }

    fn keep_launcher(&mut self, (launcher, error): Refused) -> anyhow::Error {
        self.launcher = Ok(launcher);
        error
    }

    /// Ends a new process that can't take over after all, and returns why.
    pub(crate) async fn abandon(
        &mut self,
        successor: Successor,
        error: anyhow::Error,
    ) -> anyhow::Error {
        let Successor {
            launcher, channel, ..
        } = successor;
        let stopped = spawn_blocking(move || {
            drop(channel);
            let how = launcher.stop(EXIT_LIMIT);
            (launcher, how)
        });
        match stopped.await {
            Ok((launcher, how)) => {
                self.launcher = Ok(launcher);
                error.context(format!("the new process ended: {how}"))
            }
            Err(_) => error,
        }
    }

    /// Releases the new process from the launcher, once all sessions were sent, and makes it the main process for the service
    /// manager. `inheritance` is what it continues if this process ends before [`Released::serve`]. If the future is dropped, the
    /// new process ends.
    ///
    /// # Errors
    ///
    /// The new process does not take the sessions: it was ended, and this process goes on.
    pub(crate) async fn release(
        &mut self,
        successor: Successor,
        inheritance: Inheritance,
    ) -> anyhow::Result<Released> {
        let ready = spawn_blocking(move || wait_ready(successor)).await;
        match ready.context("the thread that completes the upgrade")? {
            // On this thread, which can't end in between: the new process would be free, and never told to serve.
            Ok(successor) => Ok(successor.release(inheritance)),
            Err(refused) => Err(self.keep_launcher(refused)),
        }
    }
}

/// Interrupts an attempt whose outcome is not awaited any more.
struct InterruptOnDrop(Option<Channel>);

impl Drop for InterruptOnDrop {
    fn drop(&mut self) {
        if let Some(channel) = &self.0 {
            channel.interrupt();
        }
    }
}

fn start(
    launcher: Launcher,
    channel: Channel,
    theirs: OwnedFd,
    hello: &ToSuccessor,
    sockets: &[SharedSocket],
    deadline: Instant,
    timeout: Duration,
) -> Result<Successor, Refused> {
    let pid = match launcher.start(theirs) {
        Ok(pid) => pid,
        Err(error) => return Err((launcher, error)),
    };
    match prepare(&channel, hello, sockets, deadline) {
        Ok(adopted) => Ok(Successor {
            launcher,
            channel: Arc::new(channel),
            pid,
            adopted,
        }),
        Err(failure) => {
            drop(channel);
            let error = failure.after_end(&launcher, timeout);
            Err((launcher, error))
        }
    }
}

/// Why a new process did not become ready.
enum Failure {
    /// The process has reported this reason.
    Reported(String),
    Channel(ChannelError),
}

impl From<ChannelError> for Failure {
    fn from(error: ChannelError) -> Self {
        Self::Channel(error)
    }
}

impl Failure {
    /// Ends the process, and returns the reason: the reported one, or else the exit status and the last line of standard error.
    fn after_end(self, launcher: &Launcher, timeout: Duration) -> anyhow::Error {
        match self {
            Self::Reported(text) => {
                launcher.stop(EXIT_LIMIT);
                anyhow!("the new process: {text}")
            }
            Self::Channel(ChannelError::TimedOut) => {
                launcher.stop(Duration::ZERO);
                anyhow!("the new process was not ready after {timeout:?}, and was killed")
            }
            Self::Channel(ChannelError::Closed) => {
                anyhow!("the new process ended: {}", launcher.stop(EXIT_LIMIT))
            }
            Self::Channel(error) => {
                launcher.stop(Duration::ZERO);
                anyhow!("the new process: {error}")
            }
        }
    }
}

fn prepare(
    channel: &Channel,
    hello: &ToSuccessor,
    sockets: &[SharedSocket],
    deadline: Instant,
) -> Result<Vec<SocketInfo>, Failure> {
    let limit_next_call =
        || channel.set_time_limit(deadline.saturating_duration_since(Instant::now()));
    limit_next_call()?;
    channel.send(hello, &[io::stderr().as_fd()])?;
    for chunk in sockets.chunks(MAX_FDS) {
        let infos = chunk.iter().map(|(info, _)| info.clone()).collect();
        let fds: Vec<_> = chunk.iter().map(|(_, fd)| fd.as_fd()).collect();
        limit_next_call()?;
        channel.send(&ToSuccessor::Sockets(infos), &fds)?;
    }
    channel.send(&ToSuccessor::AllSockets, &[])?;
    let mut adopted = Vec::new();
    loop {
        limit_next_call()?;
        match channel.receive()?.0 {
            ToPredecessor::Adopted(sockets) => adopted.extend(sockets),
            ToPredecessor::Prepared => return Ok(adopted),
            ToPredecessor::Failed(why) => return Err(Failure::Reported(why)),
            other @ ToPredecessor::Ready => return Err(out_of_turn(&other)),
        }
    }
}

fn out_of_turn(message: &ToPredecessor) -> Failure {
    Failure::Reported(format!("it sent {message:?} out of turn"))
}

/// Says that all sessions were sent, and receives that the new process can serve.
fn expect_ready(channel: &Channel) -> Result<(), Failure> {
    channel.set_time_limit(SESSIONS_LIMIT)?;
    channel.send(&ToSuccessor::AllSessions, &[])?;
    match channel.receive()?.0 {
        ToPredecessor::Ready => Ok(()),
        ToPredecessor::Failed(why) => Err(Failure::Reported(why)),
        other => Err(out_of_turn(&other)),
    }
}

/// Waits until the new process has taken all sessions, and can serve. Ends it if it can't.
fn wait_ready(successor: Successor) -> Result<Successor, Refused> {
    match expect_ready(&successor.channel) {
        Ok(()) => Ok(successor),
        Err(failure) => {
            let Successor {
                launcher, channel, ..
            } = successor;
            drop(channel);
            let error = failure.after_end(&launcher, SESSIONS_LIMIT);
            Err((launcher, error))
        }
    }
}

/// Time for a process to exit after it has reported an error, or after its channel was closed.
const EXIT_LIMIT: Duration = Duration::from_secs(2);
/// The handover of UDP sessions fails after this time. Until then, no datagram is relayed.
const SESSIONS_LIMIT: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use tokio::runtime::Builder;

    use super::*;

    #[test]
    fn upgrade_without_a_free_thread_is_refused() {
        let runtime = Builder::new_current_thread()
            .max_blocking_threads(1)
            .enable_time()
            .build()
            .unwrap();
        let (server, hung) = mpsc::channel::<()>();
        runtime.spawn_blocking(move || hung.recv());
        let mut upgrader = Upgrader::unavailable("no launcher");
        let start = upgrader.start_successor(Vec::new(), Duration::from_millis(50));
        let refused = runtime.block_on(start).unwrap_err();
        assert!(refused.to_string().contains("no thread was free"));
        drop(server);
    }

    /// The old process may fail between the release of the new one and the end of the upgrade.
    #[test]
    fn released_process_is_told_once_to_serve() {
        for must_reload in [false, true] {
            let (channel, theirs) = Channel::pair().unwrap();
            let inheritance = |must_reload| Inheritance {
                pid: 1,
                log_level: None,
                in_maintenance: true,
                must_reload,
            };
            let released = Released {
                channel: Arc::new(channel),
                pid: 2,
                inheritance: inheritance(false),
            };
            if must_reload {
                released.serve(inheritance(true));
            } else {
                drop(released);
            }
            let theirs = Channel::from(theirs);
            let (ToSuccessor::Serve(got), _) = theirs.receive().unwrap() else {
                panic!("another message");
            };
            assert_eq!((got.in_maintenance, got.must_reload), (true, must_reload));
            let next = theirs.receive::<ToSuccessor>();
            assert!(matches!(next, Err(ChannelError::Closed)));
        }
    }
}
