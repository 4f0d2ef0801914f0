//! The end of a long-running subcommand: it announces that it drains, accepts no more, and waits for open connections.

use std::process::{self, ExitCode};
use std::time::Duration;

use peername_server::workers::Workers;
use tokio::time::{Instant, interval_at, sleep};

use crate::service_manager;
use crate::signals::Signals;

/// The time that open connections have at the end of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrainLimits {
    /// The time for which a process that was asked to stop still accepts, so that balancers read `/readyz` first.
    pub delay: Duration,
    /// The limit after a signal to stop.
    pub stop: Duration,
    /// The limit for a process that an upgrade has replaced.
    pub upgrade: Duration,
}

/// Why a process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// A signal has asked to stop.
    Stopped,
    /// Another process has taken over.
    Replaced,
}

impl Signals {
    /// Drains open connections within the limits. A signal closes them at once; but the first signal to a process that was
    /// replaced only shortens the limit to that of a stop. Without a signal, that process then waits until the service manager
    /// knows the new one.
    ///
    /// # Errors
    ///
    /// A worker ended by itself, while clients were still accepted.
    pub async fn end(
        mut self,
        mut running: Workers,
        ending: Ending,
        limits: DrainLimits,
    ) -> anyhow::Result<ExitCode> {
        if ending == Ending::Stopped {
            self.upgrades.stop();
        }
        // `None` if a signal has asked to close the connections at once.
        let limit = match ending {
            Ending::Stopped if limits.delay.is_zero() => Some(limits.stop),
            Ending::Stopped => {
                running.announce_drain();
                tracing::info!(
                    drain_delay = ?limits.delay,
                    "not ready any more; clients are accepted for the time of --drain-delay"
                );
                let delay = self.run_until_stopped(&mut running, sleep(limits.delay));
                delay.await?.map(|()| limits.stop)
            }
            Ending::Replaced => {
                tracing::info!(
                    pid = process::id(),
                    connections = running.open_connections(),
                    upgrade_drain = ?limits.upgrade,
                    "replaced; waiting for open connections"
                );
                match self.drain(&mut running, limits.upgrade).await {
                    // The drain goes on, for a shorter time.
                    Drained::Signalled => Some(limits.stop),
                    ended => {
                        ended.log(&running);
                        running.end();
                        // The manager ends the new process, too, if this one exits before MAINPID is sent.
                        tokio::select! {
                            () = service_manager::wait_sent() => {}
                            () = self.wait_stop() => {}
                        }
                        None
                    }
                }
            }
        };
        if let Some(limit) = limit {
            tracing::info!(drain = ?limit, "accepting no more; waiting for open connections");
            self.drain(&mut running, limit).await.log(&running);
        }
        running.end();
        running.join();
        Ok(ExitCode::SUCCESS)
    }

    /// Waits until all connections have ended, a signal comes, or the time is over. Logs once a minute how many remain.
    async fn drain(&mut self, running: &mut Workers, limit: Duration) -> Drained {
        running.drain();
        let loads = running.loads();
        let all_ended = async { while running.next_exit().await.is_some() {} };
        let time_limit = sleep(limit);
        tokio::pin!(all_ended, time_limit);
        let mut reports = interval_at(Instant::now() + REPORT_INTERVAL, REPORT_INTERVAL);
        let pid = process::id();
        loop {
            tokio::select! {
                () = &mut all_ended => return Drained::AllEnded,
                () = self.wait_stop() => return Drained::Signalled,
                () = &mut time_limit => return Drained::TimedOut,
                _ = reports.tick() => {
                    let connections: u64 = loads.iter().map(|load| load.connections()).sum();
                    tracing::info!(pid, connections, "draining: connections are still open");
                }
            }
        }
    }
}

/// How a drain ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Drained {
    AllEnded,
    Signalled,
    TimedOut,
}

impl Drained {
    /// Logs the end of a drain, and how many connections remain.
    fn log(self, running: &Workers) {
        let (pid, connections) = (process::id(), running.open_connections());
        let reason = match self {
            Self::AllEnded => "all connections have ended",
            Self::Signalled => "by a signal",
            Self::TimedOut => "its time is over, and open connections are closed",
        };
        tracing::info!(pid, connections, "drain ended: {reason}");
    }
}

const REPORT_INTERVAL: Duration = Duration::from_secs(60);
