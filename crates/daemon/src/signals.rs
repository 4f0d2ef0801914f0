//! The signals of a long-running command, and the drain that they begin.

pub mod drain;

use anyhow::{Context, bail};
use peername_server::workers::Workers;
use peername_sys::event::signals::{block, unblock};
use peername_sys::process::pidfd;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::yield_now;

use crate::upgrade::request::UpgradeReport;

/// The signals that a long-running subcommand handles.
#[derive(Debug)]
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
    /// Handled and ignored: other daemons reopen their log at SIGUSR1. Peername logs to standard error; the program
    /// that reads it rotates the log.
    user1: Signal,
    user2: Signal,
    /// The report for which `peername upgrade` waits.
    pub upgrades: UpgradeReport,
}

/// The action that a signal asks for.
#[derive(Debug)]
pub enum SignalEvent {
    /// SIGTERM or SIGINT.
    Stop,
    /// SIGHUP.
    Reload,
    /// SIGUSR2.
    Upgrade,
}

impl Signals {
    /// Has the signals that do not ask to stop wait until [`Self::listen`]: they would end a process that reads its files and
    /// resolves names, which may take long.
    pub fn defer() {
        block(&DEFERRED);
    }

    /// Installs the handlers, and receives the signals that were [deferred](Self::defer). Call it before anything is opened, so
    /// that a signal during the start ends the process in order.
    pub fn listen() -> anyhow::Result<Self> {
        let listen = |kind| signal(kind).context("sigaction(2)");
        let signals = Self {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
            hangup: listen(SignalKind::hangup())?,
            user1: listen(SignalKind::user_defined1())?,
            user2: listen(SignalKind::user_defined2())?,
            upgrades: UpgradeReport::open(),
        };
        unblock(&DEFERRED);
        Ok(signals)
    }

    /// Waits for a signal.
    ///
    /// # Errors
    ///
    /// A worker ended by itself: the process should be restarted rather than continue with fewer workers.
    pub async fn next(&mut self, running: &mut Workers) -> anyhow::Result<SignalEvent> {
        tokio::select! {
            event = self.next_event() => Ok(event),
            why = wait_worker_failure(running) => bail!(why),
        }
    }

    /// Runs `work`; returns `None` if a signal asks to stop meanwhile. Other signals are left to [`Signals::next`].
    pub async fn run_until_stopped<T>(
        &mut self,
        running: &mut Workers,
        work: impl Future<Output = T>,
    ) -> anyhow::Result<Option<T>> {
        tokio::select! {
            done = work => Ok(Some(done)),
            () = self.wait_stop() => Ok(None),
            why = wait_worker_failure(running) => bail!(why),
        }
    }

    /// Returns whether SIGHUP has come, and takes it.
    pub(crate) async fn take_reload(&mut self) -> bool {
        tokio::select! {
            biased;
            _ = self.hangup.recv() => true,
            // The runtime learns meanwhile which signals have come.
            () = yield_now() => false,
        }
    }

    async fn next_event(&mut self) -> SignalEvent {
        let Self {
            terminate,
            interrupt,
            hangup,
            user1,
            user2,
            upgrades: _,
        } = self;
        loop {
            tokio::select! {
                _ = user2.recv() => return SignalEvent::Upgrade,
                _ = terminate.recv() => return SignalEvent::Stop,
                _ = interrupt.recv() => return SignalEvent::Stop,
                _ = hangup.recv() => return SignalEvent::Reload,
                _ = user1.recv() => tracing::debug!("SIGUSR1: there is no log file to reopen"),
            }
        }
    }

    pub(crate) async fn wait_stop(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Waits until a worker ends by itself, and returns the reason.
async fn wait_worker_failure(running: &mut Workers) -> String {
    let why = match running.next_exit().await {
        Some(Err(error)) => error.to_string(),
        Some(Ok(())) | None => "it stopped accepting".to_owned(),
    };
    format!("a worker thread has ended: {why}")
}

/// The signals that have other meanings than to stop.
const DEFERRED: [pidfd::Signal; 3] = [pidfd::Signal::HUP, pidfd::Signal::USR1, pidfd::Signal::USR2];

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use peername_sys::process::pidfd::{PidFd, Signal};

    use super::*;

    #[tokio::test]
    async fn sighup_that_was_not_awaited_is_taken_once() {
        let mut signals = Signals::listen().expect("handlers");
        assert!(!signals.take_reload().await);
        let own = PidFd::open(std::process::id()).expect("pidfd_open(2)");
        own.signal(Signal::HUP).expect("pidfd_send_signal(2)");
        let begin = Instant::now();
        // Another thread may receive it.
        while !signals.take_reload().await {
            assert!(begin.elapsed() < Duration::from_secs(5));
        }
        assert!(!signals.take_reload().await);
    }
}
