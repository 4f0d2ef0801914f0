//! Watches what a keeper has installed, and restores what another program removes.

use std::fs;
use std::future::pending;
use std::time::Duration;

use peername_sys::netlink::{NftMonitor, NftRemoval, RoutingChange, RoutingMonitor};
use tokio::time::{Instant, sleep, timeout};

use super::kept_routes::KeptRoutes;
use super::nftables::TABLE_PREFIX;

/// Restores for ever what is lost, and reports it, a line each time.
///
/// It is restored at once. If it is lost again and again, another program fights for it: then ever more time passes before it
/// is restored, up to a minute.
pub(super) async fn restore_lost(kept: &KeptRoutes, mut monitors: Monitors, report: impl Fn(&str)) {
    let mut backoff = Backoff::default();
    let mut failure = Failure::default();
    // Something may have been removed before the subscription.
    let mut by = None;
    loop {
        by = monitors.drain().or(by);
        match kept.restore().await {
            Ok(restored) => {
                failure = Failure::default();
                if !restored.is_empty() {
                    backoff.note_restored(Instant::now());
                    report(&describe(&restored, by.take(), backoff.delay));
                }
            }
            Err(error) => {
                if failure.is_new(&error.to_string()) {
                    report(&format!(
                        "rules or routes for replies were lost and can't be restored; trying again: {error}"
                    ));
                }
            }
        }
        by = failure.wait_retry(monitors.next()).await;
        sleep(backoff.delay.max(SETTLE)).await;
    }
}

fn describe(restored: &[String], by: Option<String>, delay: Duration) -> String {
    let what = restored.join("`, `");
    let by = by.map_or_else(String::new, |by| format!(" by {by}"));
    let fight = match delay {
        Duration::ZERO => String::new(),
        delay => format!(
            ". It happens again and again: the next time they are restored after {delay:?}; \
             docs/routes.md names the settings of programs that remove foreign rules"
        ),
    };
    format!("what replies need was removed{by}, and is restored: `{what}`{fight}")
}

/// The subscriptions to changes.
pub(super) struct Monitors {
    routing: Option<RoutingMonitor>,
    tables: Option<NftMonitor>,
    /// The routing table of the keeper.
    table: u32,
}

impl Monitors {
    /// Subscribes to the changes that the keeper of this routing table needs, and reports what can't be watched.
    pub(super) fn subscribe(table: u32, report: impl Fn(&str)) -> Self {
        let note = |error| {
            report(&format!(
                "changes of rules and routes can't be watched: {error}"
            ));
        };
        Self {
            routing: RoutingMonitor::subscribe().map_err(note).ok(),
            // Where there is no nf_tables, there is no table of this keeper's either.
            tables: NftMonitor::subscribe(TABLE_PREFIX).ok(),
            table,
        }
    }

    /// Waits for a change that may concern the keeper, and returns the process that made it, as far as it is known.
    async fn next(&mut self) -> Option<String> {
        let (routing, tables) = (&mut self.routing, &mut self.tables);
        tokio::select! {
            change = next_routing(routing) => author_of_routing(change, self.table),
            removal = next_removal(tables) => author_of_removal(removal),
        }
    }

    /// Takes all changes that were received, and returns the process that made the last one of the keeper's.
    fn drain(&mut self) -> Option<String> {
        let mut by = None;
        while let Some(change) = self.routing.as_mut().and_then(RoutingMonitor::try_next) {
            by = author_of_routing(change, self.table).or(by);
        }
        while let Some(removal) = self.tables.as_mut().and_then(NftMonitor::try_next) {
            by = author_of_removal(removal).or(by);
        }
        by
    }
}

async fn next_routing(monitor: &mut Option<RoutingMonitor>) -> RoutingChange {
    if let Some(open) = monitor
        && let Ok(change) = open.next().await
    {
        return change;
    }
    *monitor = None;
    pending().await
}

async fn next_removal(monitor: &mut Option<NftMonitor>) -> NftRemoval {
    if let Some(open) = monitor
        && let Ok(removal) = open.next().await
    {
        return removal;
    }
    *monitor = None;
    pending().await
}

/// The port of a netlink socket is the id of its process, if it is that process's first one.
fn author_of_routing(change: RoutingChange, own_table: u32) -> Option<String> {
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

fn author_of_removal(removal: NftRemoval) -> Option<String> {
    let by = removal.by?;
    Some(format!("process {} ({})", by.pid, by.name.escape_debug()))
}

/// How long to wait before the next restoration.
#[derive(Debug, Default)]
struct Backoff {
    delay: Duration,
    restored_at: Option<Instant>,
    /// How often it was lost soon after it was restored.
    losses: u32,
}

impl Backoff {
    fn note_restored(&mut self, now: Instant) {
        let is_again = self
            .restored_at
            .is_some_and(|at| now.duration_since(at) < self.delay + FIGHT);
        self.losses = if is_again { self.losses + 1 } else { 0 };
        self.delay = match self.losses.checked_sub(QUICK_RESTORATIONS) {
            Some(excess) => MIN_DELAY
                .saturating_mul(2_u32.saturating_pow(excess))
                .min(MAX_DELAY),
            None => Duration::ZERO,
        };
        self.restored_at = Some(now);
    }
}

/// The last restoration failed: when to try again, and what was reported.
#[derive(Debug, Default)]
struct Failure {
    text: Option<String>,
    retry_after: Duration,
}

impl Failure {
    /// Whether the failure was not reported yet.
    fn is_new(&mut self, text: &str) -> bool {
        self.retry_after = (self.retry_after * 2).clamp(MIN_DELAY, MAX_DELAY);
        let is_new = self.text.as_deref() != Some(text);
        self.text = Some(text.to_owned());
        is_new
    }

    /// Waits for a change, or until the next attempt is due.
    async fn wait_retry(&self, change: impl Future<Output = Option<String>>) -> Option<String> {
        match self.text {
            None => change.await,
            Some(_) => timeout(self.retry_after, change).await.ok().flatten(),
        }
    }
}

/// A program that removes several rules does so within milliseconds: they are restored, and reported, together.
const SETTLE: Duration = Duration::from_millis(20);
/// A restart of the network and a reload of the firewall may follow each other.
const QUICK_RESTORATIONS: u32 = 4;
/// What is lost again within this time is fought for.
const FIGHT: Duration = Duration::from_secs(10);
const MIN_DELAY: Duration = Duration::from_millis(250);
/// So that a fight costs nothing, and at most one line of the log a minute.
const MAX_DELAY: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fight_backs_off_up_to_a_minute_and_ends() {
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
        backoff.note_restored(now + MAX_DELAY + FIGHT);
        assert_eq!(backoff.delay, Duration::ZERO);
    }
}
