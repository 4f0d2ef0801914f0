//! Whether replies to spoofed connections still come back to this host.
//!
//! If they don't, the backend's answers leave for clients that never asked, and every connection
//! hangs. So the path is tried at start and every minute, and while it is broken no spoofed
//! connection is opened: the client gets an RST at once, and the log says what to do.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use peername_sys::netlink::Netlink;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use crate::backend::Backend;
use peername_observe::throttle::Throttle;

use super::recent::RecentTargets;
use super::state::{CHECK_INTERVAL, ProbeState};
use super::target::{ProbeKey, ProbeTarget};

/// The last result for each target. Sound until shown otherwise.
#[derive(Debug)]
pub struct ReplyPathMonitor {
    /// Looked up once a connection and mostly few: compared sooner than hashed.
    paths: BTreeMap<ProbeKey, Arc<ProbeState>>,
    /// Of destinations on this host that headers have named.
    named: RecentTargets,
    /// That there is a new one.
    news: Notify,
}

impl ReplyPathMonitor {
    /// For these targets.
    pub fn new<P: Into<ProbeTarget>>(targets: impl IntoIterator<Item = P>) -> Self {
        let mut paths = BTreeMap::new();
        for probe in targets.into_iter().map(P::into) {
            let path = || Arc::new(ProbeState::new(probe, false));
            paths.entry(probe.key()).or_insert_with(path);
        }
        Self {
            paths,
            named: RecentTargets::new(),
            news: Notify::new(),
        }
    }

    /// For these targets, with what is known of those that were there before, and the others tried.
    pub async fn renew(&self, targets: impl IntoIterator<Item = ProbeTarget>) -> Self {
        let mut renewed = Self::new(targets);
        let mut unknown = Vec::new();
        for (probed, path) in &mut renewed.paths {
            match self.paths.get(probed) {
                Some(known) => *path = Arc::clone(known),
                None => unknown.push(Arc::clone(path)),
            }
        }
        renewed.named = self.named.clone();
        check(&unknown).await;
        renewed
    }

    /// Whether replies from `target` came back when last tried.
    pub fn is_sound(&self, target: Backend, mark: Option<NonZeroU32>) -> bool {
        self.fixed(target, mark).all(|path| path.is_sound())
    }

    /// Whether that is so for every target.
    pub fn is_all_sound(&self) -> bool {
        self.paths.values().all(|path| path.is_sound())
    }

    /// As [`ReplyPathMonitor::is_sound`], for a destination on this host that a header has named. A new one is tried at once and
    /// from then on; until the result is there, which takes milliseconds, it counts as sound.
    ///
    /// Only the latest 256 are remembered: one that was forgotten is new again.
    pub fn is_sound_or_enqueue(&self, named: Backend, mark: Option<NonZeroU32>) -> bool {
        let mut fixed = self.fixed(named, mark).peekable();
        if fixed.peek().is_some() {
            return fixed.all(|path| path.is_sound());
        }
        let probe = ProbeTarget {
            mark,
            ..named.into()
        };
        let probed = probe.key();
        if let Some(path) = self.named.get(&probed) {
            return path.is_sound();
        }
        self.named.add(probed, ProbeState::new(probe, true));
        self.news.notify_one();
        true
    }

    /// Tries every path once; changes are logged.
    pub async fn check(&self) {
        check(&self.all()).await;
    }

    /// Waits until a path is due, and tries that: a minute after its last try, a second while it is in
    /// doubt, or at once where it is new. To be called again and again; safe to cancel.
    pub async fn check_in_time(&self) {
        let due = self.due(Instant::now());
        if due.is_empty() {
            tokio::select! {
                () = sleep_until(self.next()) => {}
                () = self.news.notified() => {}
            }
        }
        check(&due).await;
    }

    /// Some of those that are due, the new ones first. What takes its time, as a path that is broken
    /// does, then holds up no more than its few worker_tasks.
    fn due(&self, now: Instant) -> Vec<Arc<ProbeState>> {
        let mut due = self.all();
        due.retain(|path| path.due().is_none_or(|due| due <= now));
        due.sort_by_key(|path| path.due());
        due.truncate(CHECK_BATCH);
        due
    }

    fn next(&self) -> Instant {
        let (all, now) = (self.all(), Instant::now());
        let due = all.iter().map(|path| path.due().unwrap_or(now));
        due.min().unwrap_or(now + CHECK_INTERVAL)
    }

    /// What is known of a target, whatever its port or for its own.
    fn fixed(
        &self,
        target: Backend,
        mark: Option<NonZeroU32>,
    ) -> impl Iterator<Item = &Arc<ProbeState>> {
        let probes = [false, true].map(|any_port| ProbeTarget {
            backend: target,
            any_port,
            mark,
        });
        let paths = probes.into_iter();
        paths.filter_map(|probe| self.paths.get(&probe.key()))
    }

    fn all(&self) -> Vec<Arc<ProbeState>> {
        let mut all = self.named.all();
        all.extend(self.paths.values().cloned());
        all
    }
}

/// Tries these, a few at a time: each takes up to two descriptors, of those that clients need.
async fn check(paths: &[Arc<ProbeState>]) {
    for paths in paths.chunks(CHECK_BATCH) {
        match Netlink::open() {
            Ok(netlink) => drop(join_all(paths.iter().map(|path| path.check(&netlink))).await),
            Err(error) => {
                if let Some(suppressed) = BLIND.pass() {
                    tracing::warn!(suppressed, "can't tell whether replies come back: {error}");
                }
                paths.iter().for_each(|path| path.tried_at(Instant::now()));
            }
        }
    }
}

/// Paths tried side by side. A broken one takes half a second.
const CHECK_BATCH: usize = 4;
static BLIND: Throttle = Throttle::new(Duration::from_secs(10));

#[cfg(test)]
mod tests;
