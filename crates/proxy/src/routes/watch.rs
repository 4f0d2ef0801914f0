//! Watches the rules, routes and tables of a keeper, and restores those that another program removes.

use std::fs;
use std::future::pending;
use std::time::Duration;

use peername_sys::Result as SysResult;
use peername_sys::netlink::{NftMonitor, NftRemoval, RoutingChange, RoutingMonitor};
use tokio::time::{Instant, sleep, timeout};

use super::kept_routes::KeptRoutes;
use super::nftables::TABLE_PREFIX;

/// Restores for ever what is lost, and reports each restoration in a line.
///
/// The first losses are restored at once. If losses go on, another program removes the rules on purpose: then each restoration
/// waits twice as long as the one before, up to a minute.
pub(super) async fn restore_lost(kept: &KeptRoutes, mut monitors: Monitors, report: impl Fn(&str)) {
    let mut backoff = Backoff::default();
    let mut retry = RetryState::default();
    let mut by = None;
    // The first round is at once: something may have been removed before the subscription.
    loop {
        by = monitors.drain().or(by);
        match kept.restore().await {
            Ok(restored) => {
                retry = RetryState::default();
                if !restored.is_empty() {
                    backoff.note_restored(Instant::now());
                    report(&describe(&restored, by.take(), backoff.delay));
                }
            }
            Err(error) => {
                if retry.note_failure(&error.to_string()) {
                    report(&format!(
                        "rules or routes for replies were lost and can't be restored; trying again: {error}"
                    ));
                }
            }
        }
        by = retry.wait(monitors.next()).await;
        sleep(backoff.delay.max(SETTLE_TIME)).await;
    }
}

fn describe(restored: &[String], by: Option<String>, delay: Duration) -> String {
    let what = restored.join("`, `");
    let by = by.map_or_else(String::new, |by| format!(" by {by}"));
    let repetition = match delay {
        Duration::ZERO => String::new(),
        delay => format!(
            ". This happens repeatedly: the next restoration follows after {delay:?}; \
             docs/routes.md names the settings of programs that remove foreign rules"
        ),
    };
    format!("what replies need was removed{by}, and is restored: `{what}`{repetition}")
}

/// The subscriptions to changes.
pub(super) struct Monitors {
    routing: Option<RoutingMonitor>,
    tables: Option<NftMonitor>,
    /// The routing table of the keeper.
    table: u32,
}

impl Monitors {
    /// Subscribes to changes for the keeper of this routing table. Reports an error if rules and routes can't be watched.
    pub(super) fn subscribe(table: u32, report: impl FnOnce(String)) -> Self {
        let note = |error| {
            report(format!(
                "changes of rules and routes can't be watched: {error}"
            ));
        };
        Self {
            routing: RoutingMonitor::subscribe().map_err(note).ok(),
            // Without nf_tables in the kernel, this keeper has no tables either.
            tables: NftMonitor::subscribe(TABLE_PREFIX).ok(),
            table,
        }
    }

    /// Waits for a change that may concern the keeper, and returns the process that made it, as far as it is known.
    async fn next(&mut self) -> Option<String> {
        let (routing, tables) = (&mut self.routing, &mut self.tables);
        tokio::select! {
            change = next_change(routing, RoutingMonitor::next) => routing_change_author(change, self.table),
            removal = next_change(tables, NftMonitor::next) => table_removal_author(removal),
        }
    }

    /// Takes all changes that were received, and returns the process that made the last known one.
    fn drain(&mut self) -> Option<String> {
        let mut by = None;
        while let Some(change) = self.routing.as_mut().and_then(RoutingMonitor::try_next) {
            by = routing_change_author(change, self.table).or(by);
        }
        while let Some(removal) = self.tables.as_mut().and_then(NftMonitor::try_next) {
            by = table_removal_author(removal).or(by);
        }
        by
    }
}

/// Waits for a change. Without a monitor, or once it has failed, waits for ever.
async fn next_change<M, C>(
    monitor: &mut Option<M>,
    next: impl AsyncFnOnce(&mut M) -> SysResult<C>,
) -> C {
    if let Some(open) = monitor
        && let Ok(change) = next(open).await
    {
        return change;
    }
    *monitor = None;
    pending().await
}

/// The process that removed a rule or route of the keeper's. The port of a netlink socket is the id of its process, if the
/// socket is the process's first one.
fn routing_change_author(change: RoutingChange, own_table: u32) -> Option<String> {
    match change {
        RoutingChange::Removed { table, port } if table == own_table && port != 0 => {
            Some(match fs::read_to_string(format!("/proc/{port}/comm")) {
                Ok(name) => format!("process {port} ({})", name.trim_end().escape_debug()),
                Err(_) => format!("netlink port {port} (usually the id of the process)"),
            })
        }
        _ => None,
    }
}

fn table_removal_author(removal: NftRemoval) -> Option<String> {
    let process = removal.process?;
    let name = process.name.escape_debug();
    Some(format!("process {} ({name})", process.pid))
}

/// The delay of the next restoration.
#[derive(Debug, Default)]
struct Backoff {
    delay: Duration,
    restored_at: Option<Instant>,
    /// Successive losses, each soon after the restoration before.
    quick_losses: u32,
}

impl Backoff {
    fn note_restored(&mut self, now: Instant) {
        let is_again = self
            .restored_at
            .is_some_and(|at| now.duration_since(at) < self.delay + QUICK_LOSS_TIME);
        self.quick_losses = if is_again { self.quick_losses + 1 } else { 0 };
        self.delay = match self.quick_losses.checked_sub(UNDELAYED_RESTORATIONS) {
            Some(excess) => MIN_DELAY
                .saturating_mul(2_u32.saturating_pow(excess))
                .min(MAX_DELAY),
            None => Duration::ZERO,
        };
        self.restored_at = Some(now);
    }
}

/// The retries of a failed restoration.
#[derive(Debug, Default)]
struct RetryState {
    /// The last error; `None` if the last restoration succeeded.
    error: Option<String>,
    retry_after: Duration,
}

impl RetryState {
    /// Notes a failure, and returns whether its error differs from the last one.
    fn note_failure(&mut self, error: &str) -> bool {
        self.retry_after = (self.retry_after * 2).clamp(MIN_DELAY, MAX_DELAY);
        let is_new = self.error.as_deref() != Some(error);
        self.error = Some(error.to_owned());
        is_new
    }

    /// Waits for a change, and after a failure at most until the next attempt is due.
    async fn wait(&self, change: impl Future<Output = Option<String>>) -> Option<String> {
        match self.error {
            None => change.await,
            Some(_) => timeout(self.retry_after, change).await.ok().flatten(),
        }
    }
}

/// A program that removes several rules does so within milliseconds: they are restored, and reported, together.
const SETTLE_TIME: Duration = Duration::from_millis(20);
/// Quick losses that are restored without a delay: a restart of the network and a reload of the firewall may follow each other.
const UNDELAYED_RESTORATIONS: u32 = 4;
/// A loss within this time after a restoration counts as quick.
const QUICK_LOSS_TIME: Duration = Duration::from_secs(10);
const MIN_DELAY: Duration = Duration::from_millis(250);
/// Bounds the cost of restorations, and the log to one line a minute.
const MAX_DELAY: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_losses_are_restored_with_a_growing_delay() {
        let mut backoff = Backoff::default();
        let mut now = Instant::now();
        let mut delays = Vec::new();
        for _ in 0..16 {
            backoff.note_restored(now);
            delays.push(backoff.delay);
            now += backoff.delay + Duration::from_secs(1);
        }
        assert_eq!(
            delays[..7],
            [0, 0, 0, 0, 250, 500, 1000].map(Duration::from_millis)
        );
        assert_eq!(delays.last(), Some(&MAX_DELAY));
        backoff.note_restored(now + MAX_DELAY + QUICK_LOSS_TIME);
        assert_eq!(backoff.delay, Duration::ZERO);
    }
}
