//! From the first signal to the end.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::bail;
use peername_proxy::server::Running;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Instant, sleep};

/// The signals that mean "stop". Caught from the moment there is one of these, so that it should be
/// there before anything is served.
#[derive(Debug)]
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    pub(crate) fn catch() -> anyhow::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Whether a signal came within one look at the workers.
    async fn told(&mut self) -> bool {
        tokio::select! {
            _ = self.terminate.recv() => true,
            _ = self.interrupt.recv() => true,
            () = sleep(LOOK) => false,
        }
    }
}

/// Serves until SIGTERM or SIGINT, then lets open connections end for as long as `drain`; a second
/// signal ends them at once.
///
/// # Errors
///
/// A worker ended that was not told to: better to be restarted than to go on with less.
pub(crate) async fn until_told_to_stop(
    mut signals: Signals,
    mut running: Running,
    drain: Duration,
) -> anyhow::Result<ExitCode> {
    while !signals.told().await {
        if let Some(error) = running.failure() {
            bail!("a worker thread has ended: {error}");
        }
    }
    tracing::info!(drain = ?drain, "accepting no more; waiting for open connections");
    running.drain();
    let deadline = Instant::now() + drain;
    while !running.has_ended() && Instant::now() < deadline {
        if signals.told().await {
            break;
        }
    }
    running.end();
    running.join();
    Ok(ExitCode::SUCCESS)
}

/// How soon the end of the last connection is noticed.
const LOOK: Duration = Duration::from_millis(50);
