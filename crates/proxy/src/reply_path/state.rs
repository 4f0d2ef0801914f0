//! The state of one reply path: the result of its last probe, and when the next one is due.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
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
    /// Whether a keeper restores the rules for the target.
    is_kept: bool,
    /// Whether a header named the target. Peers decide how many such targets there are, so their warnings are
    /// throttled.
    is_named: bool,
    is_sound: AtomicBool,
    /// Whether the last probe failed, or the path was not probed yet. Only a suspect path becomes broken: after a successful
    /// probe, one failure may be due to a single lost segment.
    is_suspect: AtomicBool,
    /// Whether peername's table for the mark was seen to recognize replies. Then the path is probed each second, because the
    /// kernel notifies of changed tables only with CAP_NET_ADMIN.
    has_seen_mark: AtomicBool,
    /// Whether it was logged that the path can't be probed.
    has_logged_other_host: AtomicBool,
    /// Whether the server's UDP socket was bound to all addresses at the last probe.
    is_wildcard: AtomicBool,
    /// The number of probes in a row that found no UDP socket of the server. The first [`MAX_SERVER_RETRIES`] are a second
    /// apart: a server that starts beside the proxy is checked before most of its clients come. There may never be one, as at
    /// the port of a listener for TPROXY rules.
    probes_without_server: AtomicU32,
    probed_at: Mutex<Option<Instant>>,
    /// When a client last used the path, in milliseconds by the caller's clock.
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
            has_seen_mark: AtomicBool::new(false),
            has_logged_other_host: AtomicBool::new(false),
            is_wildcard: AtomicBool::new(false),
            probes_without_server: AtomicU32::new(0),
            probed_at: Mutex::default(),
            last_used_ms: AtomicU64::new(0),
        }
    }

    pub(super) fn is_sound(&self) -> bool {
        self.is_sound.load(Relaxed)
    }

    /// Whether the target is a loopback address.
    pub(super) fn is_loopback(&self) -> bool {
        self.target.address.ip().to_canonical().is_loopback()
    }

    /// When the next probe is due; `None` for at once, if the path has not been probed yet.
    pub(super) fn due_at(&self) -> Option<Instant> {
        let is_soon = self.is_suspect.load(Relaxed)
            || self.has_seen_mark.load(Relaxed)
            || self.awaits_udp_server();
        let interval = if is_soon {
            RETRY_INTERVAL
        } else {
            PROBE_INTERVAL
        };
        let probed_at = *self.probed_at.lock();
        probed_at.map(|at| at + interval)
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

    /// Notes a use. Writes only a changed time, because all workers share the variable.
    pub(super) fn touch(&self, now_ms: u64) {
        if self.last_used_ms() != now_ms {
            self.last_used_ms.store(now_ms, Relaxed);
        }
    }

    pub(super) async fn probe(&self, netlink: &Netlink) {
        let mut outcome = probe::probe_with(netlink, self.target, self.mark).await;
        let is_on_this_host = !matches!(
            outcome,
            Ok(ProbeOutcome::OtherHost) | Err(ReplyPathError::Syscall(_))
        );
        if let (Ok(ProbeOutcome::OtherHost), Some(mark)) = (&outcome, self.mark) {
            outcome = self.probe_mark(netlink, mark).await;
        }
        if is_on_this_host && self.target.transport == Transport::Udp {
            self.check_wildcard();
        }
        self.update(outcome);
        self.set_probed_at(Instant::now());
    }

    /// Tests whether peername's table recognizes replies from another host by the mark. They may be recognized by other means,
    /// which can't be tested, so it is an error only if the table was there before.
    async fn probe_mark(
        &self,
        netlink: &Netlink,
        mark: NonZeroU32,
    ) -> Result<ProbeOutcome, ReplyPathError> {
        let to = probe::foreign_addr(self.target.address.ip());
        let is_delivered = reply_mark::is_delivered(netlink, mark, to).await?;
        if is_delivered {
            self.has_seen_mark.store(true, Relaxed);
        } else if self.has_seen_mark.load(Relaxed) {
            // No packet is lost on loopback, so one failure is enough to count the path as broken.
            self.suspect();
            return Err(ReplyPathError::MarkLost {
                target: self.target,
                mark,
            });
        }
        Ok(ProbeOutcome::OtherHost)
    }

    /// Warns once if the server's socket is bound to all addresses, and again only after it was not. Whether its replies are
    /// really lost can't be seen from outside.
    fn check_wildcard(&self) {
        let target = self.target.address;
        let client = SocketAddr::new(probe::foreign_addr(target.ip()), DISCARD);
        let found = SocketLookup::open().and_then(|lookup| lookup.is_udp_wildcard(target, client));
        self.note_udp_server(!matches!(found, Ok(None)));
        match found {
            Ok(Some(true)) if self.is_wildcard.load(Relaxed) => return,
            Ok(Some(true)) => {}
            Ok(Some(false) | None) => return self.is_wildcard.store(false, Relaxed),
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

    /// Notes whether a probe found the server's UDP socket.
    pub(super) fn note_udp_server(&self, is_found: bool) {
        let probes = if is_found {
            0
        } else {
            let before = self.probes_without_server.load(Relaxed);
            before.saturating_add(1)
        };
        self.probes_without_server.store(probes, Relaxed);
    }

    /// Whether the path is probed each second until its server has a UDP socket.
    fn awaits_udp_server(&self) -> bool {
        let probes = self.probes_without_server.load(Relaxed);
        !self.is_named && (1..=MAX_SERVER_RETRIES).contains(&probes)
    }

    /// Stores the result of a probe, and logs a change.
    pub(super) fn update(&self, outcome: Result<ProbeOutcome, ReplyPathError>) {
        match outcome {
            // A failed system call says nothing about the path: a host that is short of descriptors or memory must not
            // refuse its clients.
            Err(ReplyPathError::Syscall(error)) => {
                if let Some(suppressed) = self.may_warn() {
                    let target = self.target;
                    tracing::warn!(upstream = %target, suppressed, "can't tell whether replies come back: {error}");
                }
            }
            Err(error) => self.record_failure(&error),
            Ok(tested) => self.record_success(tested),
        }
    }

    fn record_failure(&self, error: &ReplyPathError) {
        let target = self.target;
        let restored = if error.is_missing_rule() && self.is_kept {
            ". The process that `--setup-routes` has started restores the rules"
        } else {
            ""
        };
        let was_suspect = self.is_suspect.swap(true, Relaxed);
        if was_suspect
            && self.is_sound.swap(false, Relaxed)
            && let Some(suppressed) = self.may_warn()
        {
            tracing::warn!(
                upstream = %target,
                suppressed,
                "replies do not come back: {error}{restored}. Clients of {target} are refused until its replies come back"
            );
        }
    }

    fn record_success(&self, tested: ProbeOutcome) {
        let target = self.target;
        let was_suspect = self.is_suspect.swap(false, Relaxed);
        if was_suspect
            && tested == ProbeOutcome::OtherHost
            && !self.is_named
            && !self.has_logged_other_host.swap(true, Relaxed)
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
        if was_suspect || !self.awaits_udp_server() {
            tracing::debug!(upstream = %target, ?tested, "replies come back");
        }
    }

    /// `Some` when a warning may be logged, with the number of suppressed ones.
    fn may_warn(&self) -> Option<u64> {
        if self.is_named {
            NAMED_TARGETS_LOG.pass()
        } else {
            Some(0)
        }
    }
}

/// Throttles all warnings about targets that headers name: they may be any of 16 million loopback addresses.
static NAMED_TARGETS_LOG: Throttle = Throttle::new();
/// The source port of a lookup for any client: the discard protocol's (RFC 863), which no client has.
const DISCARD: u16 = 9;
/// The probe interval of a sound path. Routes change rarely; each probe costs one loopback connection.
pub(super) const PROBE_INTERVAL: Duration = Duration::from_secs(60);
/// The probe interval of a suspect path. It is short, because rules are often added just after the start (systemd's
/// ExecStartPost).
pub(super) const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Probes at [`RETRY_INTERVAL`] for a server without a UDP socket: a minute, in which a service starts.
pub(super) const MAX_SERVER_RETRIES: u32 = 60;
