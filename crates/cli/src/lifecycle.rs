//! The lifecycle of a long-running subcommand: descriptor limits, signals, reload, drain.

pub(crate) mod drain;

use std::num::NonZeroUsize;
use std::sync::OnceLock;
use std::thread::available_parallelism;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use peername_server::own_addresses::OwnAddresses;
use peername_server::workers::{Capacity, Workers};
use peername_sys::process::limits::{count_open_files, raise_open_files};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{sleep, timeout};

use crate::upgrade::UpgradeReport;

/// The signals that a long-running subcommand handles.
#[derive(Debug)]
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
    /// Handled and ignored: other daemons reopen their log at SIGUSR1. Peername logs to standard error; the program
    /// that reads it rotates the log.
    user1: Signal,
    user2: Signal,
    /// What those that request an upgrade by `user2` wait for.
    pub(crate) upgrades: UpgradeReport,
}

/// The action that a signal asks for.
#[derive(Debug)]
pub(crate) enum SignalEvent {
    /// SIGTERM or SIGINT.
    Stop,
    /// SIGHUP.
    Reload,
    /// SIGUSR2.
    Upgrade,
}

/// Runs the control side on this thread until it returns.
///
/// # Errors
///
/// Those of `work`; or the runtime can't be started.
pub(crate) fn block_on<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("starting the control runtime")?;
    let done = runtime.block_on(work);
    // Dropping it would wait for lookups that are still in flight.
    runtime.shutdown_background();
    done
}

/// The default of `--workers`: one per core. It is determined once, because a confined process can't read its cgroup.
pub(crate) fn default_workers() -> usize {
    static CORES: OnceLock<usize> = OnceLock::new();
    *CORES.get_or_init(|| available_parallelism().map_or(1, NonZeroUsize::get))
}

/// Reads files and names again for a reload, beside the control side. A thread that is stuck in a file system or a name
/// server is left behind, and the next reload begins another.
///
/// # Errors
///
/// Those of `read`; or it took longer than [`REREAD_TIMEOUT`].
pub(crate) async fn reread<T: Send + 'static>(
    read: impl FnOnce() -> anyhow::Result<T> + Send + 'static,
) -> anyhow::Result<T> {
    let reading = tokio::task::spawn_blocking(read);
    let read = timeout(REREAD_TIMEOUT, reading).await;
    read.with_context(|| format!("the files or their names took longer than {REREAD_TIMEOUT:?}"))??
}

/// Raises the limit of descriptors to the hard limit, and checks that this many listening sockets leave
/// some for connections.
///
/// # Errors
///
/// They leave fewer than [`MIN_CONNECTION_FDS`]; or the limit can't be read or raised.
pub(crate) fn require_descriptors(workers: usize, sockets: usize) -> anyhow::Result<()> {
    let limit = usize::try_from(raise_open_files()?)?;
    let own = count_open_files()? + workers * FDS_PER_RUNTIME + sockets + SPARE_FDS;
    ensure!(
        own + MIN_CONNECTION_FDS <= limit,
        "{sockets} listening sockets (one for each address and worker) leave too few of {limit} \
         descriptors for connections: raise LimitNOFILE or `ulimit -Hn` to {} or more, or lower \
         --workers",
        (own + MIN_CONNECTION_FDS).next_multiple_of(1024)
    );
    Ok(())
}

/// Computes the capacity for connections and pipes from the limit of descriptors, which it raises to the hard limit.
///
/// `workers` are about to start, each with `worker_tasks` tasks; listeners are open already, and UDP may use `udp_fds`
/// beside its listeners. Each connection needs two descriptors, each pipe two, and some are the process's own.
///
/// # Errors
///
/// The limit or the open descriptors can't be read.
pub(crate) fn capacity(
    workers: usize,
    worker_tasks: usize,
    udp_fds: usize,
) -> anyhow::Result<Capacity> {
    let limit = usize::try_from(raise_open_files()?)?.saturating_sub(udp_fds);
    // The worker and each of its tasks wait with an epoll instance of their own.
    let fds_per_worker = FDS_PER_RUNTIME + 1 + worker_tasks;
    let own = count_open_files()? + workers * fds_per_worker + SPARE_FDS;
    let pairs = limit.saturating_sub(own) / 2;
    let pipes_per_worker = (pairs / 8 / workers).min(MAX_PIPES_PER_WORKER);
    let connections = (pairs - pipes_per_worker * workers).max(1);
    Ok(Capacity {
        connections,
        pipes_per_worker,
    })
}

/// The descriptors that UDP sessions may have: all but the process's own, or half of those where TCP needs
/// some too. Without a bound, a flood of UDP clients would take the descriptors of everything else.
///
/// # Errors
///
/// The limit or the open descriptors can't be read.
pub(crate) fn session_fd_budget(workers: usize, has_tcp: bool) -> anyhow::Result<usize> {
    let limit = usize::try_from(raise_open_files()?)?;
    let own = count_open_files()? + workers * FDS_PER_RUNTIME + 2 * SPARE_FDS;
    let free = limit.saturating_sub(own);
    Ok(if has_tcp { free / 2 } else { free }.max(1))
}

impl Signals {
    /// Installs the handlers. Call it before anything is opened, so that a signal during the start ends the process in order.
    ///
    /// # Errors
    ///
    /// sigaction(2) failed.
    pub(crate) fn listen() -> anyhow::Result<Self> {
        let listen = |kind| signal(kind).context("sigaction(2)");
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
            hangup: listen(SignalKind::hangup())?,
            user1: listen(SignalKind::user_defined1())?,
            user2: listen(SignalKind::user_defined2())?,
            upgrades: UpgradeReport::open(),
        })
    }

    /// Serves until a signal comes.
    ///
    /// # Errors
    ///
    /// A worker ended by itself: the process should be restarted rather than continue with fewer workers.
    pub(crate) async fn next(&mut self, running: &mut Workers) -> anyhow::Result<SignalEvent> {
        tokio::select! {
            event = self.next_event() => Ok(event),
            why = wait_worker_failure(running) => bail!(why),
        }
    }

    /// Serves until `work` is done, or until a signal asks to stop: then `None`. A further SIGHUP is left to the next call.
    ///
    /// # Errors
    ///
    /// As [`Signals::next`].
    pub(crate) async fn run_until_stopped<T>(
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

    async fn wait_stop(&mut self) {
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

/// Watches the changes of this host's addresses for as long as the process runs; retries after an error.
pub(crate) async fn watch_own_addresses(own_addresses: OwnAddresses) {
    loop {
        let Err(error) = own_addresses.watch().await;
        tracing::warn!("can't watch this host's addresses: {error}; trying again");
        sleep(WATCH_RETRY_DELAY).await;
    }
}

/// The time that a slow name server takes with all retries.
const REREAD_TIMEOUT: Duration = Duration::from_secs(60);
const WATCH_RETRY_DELAY: Duration = Duration::from_secs(5);
/// Descriptors of a tokio runtime: epoll twice, eventfd, the signal pipe; and a spare.
const FDS_PER_RUNTIME: usize = 5;
/// Descriptors for netlink, the reply path probe, the service manager, and the files that confinement and the admin endpoint keep
/// open.
const SPARE_FDS: usize = 10;
/// Descriptors of five connections; with fewer, a proxy that can serve no client would start.
const MIN_CONNECTION_FDS: usize = 10;
/// More pipes than this gain nothing over copying.
const MAX_PIPES_PER_WORKER: usize = 256;
