//! One path, and what its last try showed.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use peername_sys::netlink::Netlink;
use tokio::time::Instant;

use super::target::ProbeTarget;
use crate::backend::Backend;
use crate::reply_path::probe::{self, ProbeOutcome, ReplyPathError};
use peername_observe::throttle::Throttle;

#[derive(Debug)]
pub(super) struct ProbeState {
    target: Backend,
    mark: Option<NonZeroU32>,
    /// By a header, so that peers decide how many there are.
    named: bool,
    sound: AtomicBool,
    /// The last try failed, or there was none yet. One lost segment is no evidence against a path
    /// that has been shown to be sound.
    doubted: AtomicBool,
    tried: Mutex<Option<Instant>>,
    /// When a client last asked, in milliseconds since some point.
    used: AtomicU64,
}

impl ProbeState {
    /// One that was configured, or else named by a header.
    pub(super) fn new(probe: ProbeTarget, named: bool) -> Self {
        Self {
            target: probe.backend,
            mark: probe.mark,
            named,
            sound: AtomicBool::new(true),
            doubted: AtomicBool::new(true),
            tried: Mutex::default(),
            used: AtomicU64::new(0),
        }
    }

    pub(super) fn is_sound(&self) -> bool {
        self.sound.load(Relaxed)
    }

    /// When to try next; `None` for at once, as there was no try yet.
    pub(super) fn due(&self) -> Option<Instant> {
        let after = match self.doubted.load(Relaxed) {
            true => RETRY_INTERVAL,
            false => CHECK_INTERVAL,
        };
        let tried = *self.tried.lock().unwrap_or_else(PoisonError::into_inner);
        tried.map(|tried| tried + after)
    }

    pub(super) fn tried_at(&self, now: Instant) {
        *self.tried.lock().unwrap_or_else(PoisonError::into_inner) = Some(now);
    }

    pub(super) fn used(&self) -> u64 {
        self.used.load(Relaxed)
    }

    /// Writes only what is new, for all workers share it.
    pub(super) fn use_at(&self, now: u64) {
        if self.used() != now {
            self.used.store(now, Relaxed);
        }
    }

    pub(super) async fn check(&self, netlink: &Netlink) {
        let outcome = probe::check_with(netlink, self.target, self.mark).await;
        self.update(outcome);
        self.tried_at(Instant::now());
    }

    /// Remembers what a try showed, and logs what that changes.
    pub(super) fn update(&self, outcome: Result<ProbeOutcome, ReplyPathError>) {
        let target = self.target;
        match outcome {
            // Says nothing about the path, and a host that is short of something must not lose its
            // clients for it.
            Err(ReplyPathError::Failed(error)) => {
                if let Some(suppressed) = self.may_warn() {
                    tracing::warn!(upstream = %target, suppressed, "can't tell whether replies come back: {error}");
                }
            }
            Err(broken) => {
                let again = self.doubted.swap(true, Relaxed);
                if again
                    && self.sound.swap(false, Relaxed)
                    && let Some(suppressed) = self.may_warn()
                {
                    tracing::warn!(
                        upstream = %target,
                        suppressed,
                        "replies do not come back: {broken}. Until they do, clients that would go \
                         to {target} are refused"
                    );
                }
            }
            Ok(tested) => {
                let is_new = self.doubted.swap(false, Relaxed);
                if is_new && tested == ProbeOutcome::NotHere && !self.named {
                    tracing::info!(
                        upstream = %target,
                        "the backend is on another host, so whether replies come back can't be told \
                         without connecting to it: `peername doctor` does (docs/routes.md)"
                    );
                }
                if !self.sound.swap(true, Relaxed) {
                    tracing::info!(upstream = %target, "replies come back again");
                }
                tracing::debug!(upstream = %target, ?tested, "replies come back");
            }
        }
    }

    /// `Some` when a warning may be given, with the number of those that were not.
    fn may_warn(&self) -> Option<u64> {
        match self.named {
            true => WARNED.pass(),
            false => Some(0),
        }
    }
}

/// A header may name any of 16 million loopback addresses; one line shows what is wrong.
static WARNED: Throttle = Throttle::new(Duration::from_secs(10));
/// Routes change rarely; each try costs one loopback connection.
pub(super) const CHECK_INTERVAL: Duration = Duration::from_secs(60);
/// Rules are often added just after the start (systemd's ExecStartPost): notice soon.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
