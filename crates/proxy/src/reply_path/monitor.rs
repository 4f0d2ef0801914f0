//! Monitors whether replies to spoofed connections still come back to this host.
//!
//! If they don't, the backend's SYN-ACKs leave for clients that sent no SYN, and every connection hangs. So each path
//! is probed at start and every minute: other programs may flush routes. While a path is broken, its spoofed connections
//! are refused: the client gets an RST at once, and the log says what to do.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::Arc;

use futures_util::future::join_all;
use peername_sys::netlink::Netlink;
use peername_sys::throttle::Throttle;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use super::recent::RecentTargets;
use super::state::{PROBE_INTERVAL, ProbeState};
use super::target::{ProbeKey, ProbeTarget};
use super::translated_client::TranslatedClient;
use crate::backend::Backend;

/// The last result for each target. A reply path counts as sound until a probe shows otherwise.
#[derive(Debug)]
pub struct ReplyPathMonitor {
    /// The configured targets. Each connection looks its target up here; comparing the few keys of a tree is faster
    /// than hashing.
    configured: BTreeMap<ProbeKey, Arc<ProbeState>>,
    /// The destinations on this host that headers have named.
    recent: RecentTargets,
    /// A client whose address NAT rules replace.
    translated: Arc<TranslatedClient>,
    /// Wakes [`ReplyPathMonitor::probe_when_due`] for a new or suspect target.
    due_changed: Notify,
}

impl ReplyPathMonitor {
    /// Monitors these targets, none of which has been probed.
    pub fn new<P: Into<ProbeTarget>>(targets: impl IntoIterator<Item = P>) -> Self {
        let mut configured = BTreeMap::new();
        for target in targets.into_iter().map(P::into) {
            let state = || Arc::new(ProbeState::new(target, false));
            configured.entry(target.key()).or_insert_with(state);
        }
        Self {
            configured,
            recent: RecentTargets::new(),
            translated: Arc::default(),
            due_changed: Notify::new(),
        }
    }

    /// Returns a monitor for these targets, for a reload. It keeps the results of targets that this monitor has; the
    /// others are probed before it is returned.
    pub async fn retarget(&self, targets: impl IntoIterator<Item = ProbeTarget>) -> Self {
        let mut monitor = Self::new(targets);
        let mut unknown = Vec::new();
        for (key, state) in &mut monitor.configured {
            match self.configured.get(key) {
                Some(known) => *state = Arc::clone(known),
                None => unknown.push(Arc::clone(state)),
            }
        }
        monitor.recent = self.recent.clone();
        monitor.translated = Arc::clone(&self.translated);
        probe_in_batches(&unknown).await;
        monitor
    }

    /// Whether replies from `target` came back at the last probe.
    pub fn is_sound(&self, target: Backend, mark: Option<NonZeroU32>) -> bool {
        self.find_configured(target, mark)
            .all(|state| state.is_sound())
    }

    /// Whether replies from every configured target came back at the last probe.
    pub fn is_all_sound(&self) -> bool {
        self.configured.values().all(|state| state.is_sound())
    }

    /// Whether [`ReplyPathMonitor::is_all_sound`], and replies from the loopback destinations that headers have named recently
    /// came back, too.
    pub fn is_all_known_sound(&self) -> bool {
        let named = self.recent.all();
        let is_sound = |state: &Arc<ProbeState>| state.is_sound() || !state.is_loopback();
        self.is_all_sound() && named.iter().all(is_sound)
    }

    /// As [`ReplyPathMonitor::is_sound`], for a destination on this host that a header has named. A new one is enqueued to
    /// be probed at once and periodically; until the first result, which takes milliseconds, it counts as sound.
    ///
    /// Only the 256 most recently used are remembered: an evicted one is new again.
    pub fn is_sound_or_enqueue(&self, named: Backend, mark: Option<NonZeroU32>) -> bool {
        let mut configured = self.find_configured(named, mark).peekable();
        if configured.peek().is_some() {
            return configured.all(|state| state.is_sound());
        }
        let target = ProbeTarget::marked(named, mark);
        let key = target.key();
        if let Some(state) = self.recent.get(&key) {
            return state.is_sound();
        }
        self.recent.insert(key, ProbeState::new(target, true));
        self.due_changed.notify_one();
        true
    }

    /// Reports that a connection from a client's address to `target` timed out: maybe the target's replies do not come back any
    /// more. The next probe is due a second after the last one; if it fails, the path counts as broken.
    pub(crate) fn report_timeout(&self, target: Backend, mark: Option<NonZeroU32>) {
        for state in self.find_configured(target, mark) {
            state.suspect();
        }
        let named = ProbeTarget::marked(target, mark);
        if let Some(state) = self.recent.get(&named.key()) {
            state.suspect();
        }
        self.due_changed.notify_one();
    }

    /// Reports that rules or routes have changed: every target is due at once, and a path is broken if that probe fails.
    pub fn report_routing_change(&self) {
        for state in self.all_targets() {
            state.expire();
        }
        self.due_changed.notify_one();
    }

    /// Reports a client that was refused because NAT rules replace its address on the way to `target`. The client's path is
    /// probed at once, and then each second until its address is kept again.
    pub(crate) fn report_translated(
        &self,
        client: IpAddr,
        target: Backend,
        mark: Option<NonZeroU32>,
    ) {
        if self.translated.report(client, target, mark) {
            self.due_changed.notify_one();
        }
    }

    /// A client whose address NAT rules replace, as of the last probe: it is refused.
    pub fn translated_client(&self) -> Option<IpAddr> {
        self.translated.confirmed()
    }

    /// Probes every target once; changes are logged.
    pub async fn probe_all(&self) {
        probe_in_batches(&self.all_targets()).await;
    }

    /// Waits until a target is due and probes it: a minute after its last probe, a second after a failed one, and at once if it
    /// is new. To be called in a loop. Cancel-safe: a target is still due if its probe was cancelled.
    pub async fn probe_when_due(&self) {
        self.translated.probe_when_due(Instant::now());
        let due = self.due_targets(Instant::now());
        if due.is_empty() {
            tokio::select! {
                () = sleep_until(self.next_due()) => {}
                () = self.due_changed.notified() => {}
            }
        }
        probe_in_batches(&due).await;
    }

    /// Returns up to one batch of the due targets, new ones first. A batch is small, so that the slow probe of a broken path
    /// delays only a few others.
    fn due_targets(&self, now: Instant) -> Vec<Arc<ProbeState>> {
        let mut due = self.all_targets();
        due.retain(|state| state.due_at().is_none_or(|at| at <= now));
        due.sort_by_key(|state| state.due_at());
        due.truncate(PROBE_BATCH);
        due
    }

    fn next_due(&self) -> Instant {
        let now = Instant::now();
        self.all_targets()
            .iter()
            .map(|state| state.due_at().unwrap_or(now))
            .chain(self.translated.due_at(now))
            .min()
            .unwrap_or(now + PROBE_INTERVAL)
    }

    /// The results for a configured target: those of its port, and those of any port of its address.
    fn find_configured(
        &self,
        target: Backend,
        mark: Option<NonZeroU32>,
    ) -> impl Iterator<Item = &Arc<ProbeState>> {
        [false, true].into_iter().filter_map(move |any_port| {
            let target = ProbeTarget {
                any_port,
                ..ProbeTarget::marked(target, mark)
            };
            self.configured.get(&target.key())
        })
    }

    fn all_targets(&self) -> Vec<Arc<ProbeState>> {
        let mut all = self.recent.all();
        all.extend(self.configured.values().cloned());
        all
    }
}

/// Probes targets in batches, because each probe takes up to two file descriptors, and clients may need the last ones.
async fn probe_in_batches(targets: &[Arc<ProbeState>]) {
    for batch in targets.chunks(PROBE_BATCH) {
        match Netlink::open() {
            Ok(netlink) => drop(join_all(batch.iter().map(|state| state.probe(&netlink))).await),
            Err(error) => {
                if let Some(suppressed) = NETLINK_LOG.pass() {
                    tracing::warn!(suppressed, "can't tell whether replies come back: {error}");
                }
                let now = Instant::now();
                batch.iter().for_each(|state| state.set_probed_at(now));
            }
        }
    }
}

/// The number of targets that are probed concurrently. The probe of a broken path takes half a second.
const PROBE_BATCH: usize = 4;
static NETLINK_LOG: Throttle = Throttle::new();

#[cfg(test)]
mod tests;
