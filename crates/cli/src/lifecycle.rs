//! From the first signal to the end.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::bail;
use peername_proxy::server::Running;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Instant, sleep};

/// Serves until SIGTERM or SIGINT, then lets open connections end for as long as `drain`; a second
/// signal ends them at once.
///
/// # Errors
///
/// A worker ended that was not told to: better to be restarted than to go on with less.
pub(crate) async fn until_told_to_stop(
    mut running: Running,
    drain: Duration,
) -> anyhow::Result<ExitCode> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    while !told(&mut terminate, &mut interrupt).await {
        if let Some(error) = running.failure() {
            bail!("a worker thread has ended: {error}");
        }
    }
    tracing::info!(drain = ?drain, "accepting no more; waiting for open connections");
    running.drain();
    let deadline = Instant::now() + drain;
    while !running.has_ended() && Instant::now() < deadline {
        if told(&mut terminate, &mut interrupt).await {
            break;
        }
    }
    running.end();
    running.join();
    Ok(ExitCode::SUCCESS)
}

/// Whether a signal came within one look at the workers.
async fn told(terminate: &mut Signal, interrupt: &mut Signal) -> bool {
    tokio::select! {
        _ = terminate.recv() => true,
        _ = interrupt.recv() => true,
        () = sleep(LOOK) => false,
    }
}

/// How soon the end of the last connection is noticed.
const LOOK: Duration = Duration::from_millis(50);
