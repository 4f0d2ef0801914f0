//! The state of one reply path: the result of its last probe, and when the next one is due.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;
use peername_sys::Transport;
use peername_sys::netlink::{Netlink, SocketLookup};
use peername_sys::throttle::Throttle;
use tokio::time::Instant;

use super::probe::{self, ProbeOutcome, ReplyPathError};
use super::reply_mark;
use super::target::ProbeTarget;
use crate::backend::Backend;

/// The state of one reply path, shared by all workers.
#[derive(Debug)]
pub(super) struct ProbeState {
    target: Backend,
    mark: Option<NonZeroU32>,
    /// Whether a keeper restores the rules for it.
    is_kept: bool,
    /// Whether a header named the target. Peers decide how many such targets there are, so their warnings are
    /// throttled.
    is_named: bool,
    is_sound: AtomicBool,
    /// Whether the last probe failed, or there was none yet. Only a suspect path becomes broken: one failure, maybe a
    /// single lost segment, is no evidence against a path that passed its last probe.
    is_suspect: AtomicBool,
    /// Whether replies were once recognized by peername's table for the mark. Changes of tables are not notified of without
    /// CAP_NET_ADMIN, so the path is then probed each second.
    sees_mark: AtomicBool,
    /// Whether it was logged that the path can't be probed.
    is_announced: AtomicBool,
    /// Whether the server's UDP socket was bound to all addresses at the last probe.
    is_wildcard: AtomicBool,
    probed_at: Mutex<Option<Instant>>,
    /// When a client last used the path, in milliseconds on the clock of the caller.
    last_used_ms: AtomicU64,
}

impl ProbeState {
    /// A path that has not been probed. `is_named`: a header named the target; otherwise it is configured.
    pub(super) fn new(target: ProbeTarget, is_named: bool) -> Self {
        Self {
            target: target.backend,
            mark: target.mark,
            is_kept: target.is_kept,
            is_named,
            is_sound: AtomicBool::new(true),
            is_suspect: AtomicBool::new(true),
            sees_mark: AtomicBool::new(false),
            is_announced: AtomicBool::new(false),
            is_wildcard: AtomicBool::new(false),
            probed_at: Mutex::default(),
            last_used_ms: AtomicU64::new(0),
        }
    }

    pub(super) fn is_sound(&self) -> bool {
        self.is_sound.load(Relaxed)
    }

    /// When the next probe is due; `None` for at once, if the path has not been probed yet.
    pub(super) fn due_at(&self) -> Option<Instant> {
        let is_frequent = self.is_suspect.load(Relaxed) || self.sees_mark.load(Relaxed);
        let after = match is_frequent {
            true => RETRY_INTERVAL,
            false => PROBE_INTERVAL,
        };
        let probed_at = *self.probed_at.lock();
        probed_at.map(|at| at + after)
    }

    /// Makes the path suspect: its next probe is due [`RETRY_INTERVAL`] after the last one.
    pub(super) fn suspect(&self) {
        self.is_suspect.store(true, Relaxed);
    }

    /// Makes the path suspect, and its next probe due at once.
    pub(super) fn expire(&self) {
        self.suspect();
        *self.probed_at.lock() = None;
    }

    pub(super) fn set_probed_at(&self, now: Instant) {
        *self.probed_at.lock() = Some(now);
    }

    pub(super) fn last_used_ms(&self) -> u64 {
        self.last_used_ms.load(Relaxed)
    }

    /// Notes a use. Writes only a changed time, because all workers share it.
    pub(super) fn touch(&self, now_ms: u64) {
        if self.last_used_ms() != now_ms {
            self.last_used_ms.store(now_ms, Relaxed);
        }
    }

    pub(super) async fn probe(&self, netlink: &Netlink) {
        let mut outcome = probe::probe_with(netlink, self.target, self.mark).await;
        let is_here = !matches!(
            outcome,
            Ok(ProbeOutcome::OtherHost) | Err(ReplyPathError::Syscall(_))
        );
        if let (Ok(ProbeOutcome::OtherHost), Some(mark)) = (&outcome, self.mark) {
            outcome = self.probe_mark(netlink, mark).await;
        }
        if is_here && self.target.transport == Transport::Udp {
            self.look_for_wildcard();
        }
        self.update(outcome);
        self.set_probed_at(Instant::now());
    }

    /// Tests whether replies from another host are recognized by the mark, as peername's table does it. Other means can't be
    /// tested, so only a table that was there can be missing.
    async fn probe_mark(
        &self,
        netlink: &Netlink,
        mark: NonZeroU32,
    ) -> Result<ProbeOutcome, ReplyPathError> {
        let to = probe::foreign_addr(self.target.address.ip());
        let is_delivered = reply_mark::is_delivered(netlink, mark, to).await?;
        if is_delivered {
            self.sees_mark.store(true, Relaxed);
        } else if self.sees_mark.load(Relaxed) {
            // No packet is lost on loopback: one failure suffices.
            self.suspect();
            return Err(ReplyPathError::MarkLost {
                target: self.target,
                mark,
            });
        }
        Ok(ProbeOutcome::OtherHost)
    }

    /// Logs that the server's socket has begun to be bound to all addresses. Whether its replies are lost can't be seen from
    /// outside.
    fn look_for_wildcard(&self) {
        let target = self.target.address;
        let client = SocketAddr::new(probe::foreign_addr(target.ip()), DISCARD);
        let found = SocketLookup::open().and_then(|lookup| lookup.is_udp_wildcard(target, client));
        match found {
            Ok(true) if self.is_wildcard.load(Relaxed) => return,
            Ok(true) => {}
            Ok(false) => return self.is_wildcard.store(false, Relaxed),
            // Nothing is known.
            Err(_) => return,
        }
        if let Some(suppressed) = self.may_warn() {
            self.is_wildcard.store(true, Relaxed);
            tracing::warn!(
                upstream = %self.target,
                suppressed,
                "the server's UDP socket is bound to all addresses: its replies are lost unless they come from {}. Bind it to that \
                 address; servers that reply from the address that a request was sent to (IP_PKTINFO) need no change (docs/udp.md)",
                target.ip()
            );
        }
    }

    /// Stores the result of a probe, and logs a change.
    pub(super) fn update(&self, outcome: Result<ProbeOutcome, ReplyPathError>) {
        let target = self.target;
        match outcome {
            // A failed system call says nothing about the path: a host that is short of descriptors or memory must not
            // refuse its clients.
            Err(ReplyPathError::Syscall(error)) => {
                if let Some(suppressed) = self.may_warn() {
                    tracing::warn!(upstream = %target, suppressed, "can't tell whether replies come back: {error}");
                }
            }
            Err(broken) => {
                let restored = match broken.is_missing_rule() && self.is_kept {
                    true => ". The process that `--setup-routes` has started restores the rules",
                    false => "",
                };
                let was_suspect = self.is_suspect.swap(true, Relaxed);
                if was_suspect
                    && self.is_sound.swap(false, Relaxed)
                    && let Some(suppressed) = self.may_warn()
                {
                    tracing::warn!(
                        upstream = %target,
                        suppressed,
                        "replies do not come back: {broken}{restored}. Until they do, clients that would go \
                         to {target} are refused"
                    );
                }
            }
            Ok(tested) => {
                let was_suspect = self.is_suspect.swap(false, Relaxed);
                if was_suspect
                    && tested == ProbeOutcome::OtherHost
                    && !self.is_named
                    && !self.is_announced.swap(true, Relaxed)
                {
                    tracing::info!(
                        upstream = %target,
                        "the backend is on another host, so whether replies come back can't be told \
                         without connecting to it: `peername doctor` does (docs/routes.md)"
                    );
                }
                if !self.is_sound.swap(true, Relaxed) {
                    tracing::info!(upstream = %target, "replies come back again");
                }
                tracing::debug!(upstream = %target, ?tested, "replies come back");
            }
        }
    }

    /// `Some` when a warning may be logged, with the number of suppressed ones.
    fn may_warn(&self) -> Option<u64> {
        match self.is_named {
            true => NAMED_TARGETS.pass(),
            false => Some(0),
        }
    }
}

/// A header may name any of 16 million loopback addresses; one line for all of them shows what is wrong.
static NAMED_TARGETS: Throttle = Throttle::new();
/// The port of a client that no client has (RFC 863).
const DISCARD: u16 = 9;
/// Routes change rarely; each probe costs one loopback connection.
pub(super) const PROBE_INTERVAL: Duration = Duration::from_secs(60);
/// Short, because rules are often added just after the start (systemd's ExecStartPost).
pub(super) const RETRY_INTERVAL: Duration = Duration::from_secs(1);
