//! Verification of open sessions: whether their backends still see the clients.
//!
//! NAT rules that are added do not apply to what connection tracking knows already. But it may have begun only with them, it
//! forgets a session that is idle, and a table that kept a session from it may be removed.

use std::time::{Duration, Instant};

use super::Session;

/// Which sessions are verified next.
#[derive(Debug, Default)]
pub(super) struct Verification {
    /// When a session was last found of which the address is replaced: each session that was last verified before is verified at
    /// its next datagram.
    pub(super) suspect_since: Option<Instant>,
    /// The slot from which the next sessions are tried.
    pub(super) next_slot: usize,
}

impl Verification {
    /// Whether the session has to be verified before its next datagram is sent.
    pub(super) fn is_due(&self, session: &Session, now: Instant) -> bool {
        now.duration_since(session.last_request) >= TRACKED_FOR
            || self
                .suspect_since
                .is_some_and(|since| session.verified_at <= since)
    }
}

/// Connection tracking keeps a translation for 30 s at least without a datagram (`nf_conntrack_udp_timeout`).
const TRACKED_FOR: Duration = Duration::from_secs(20);
/// Each takes about 10 us, in which the worker serves no datagram.
pub(super) const TRIED_PER_SECOND: usize = 64;
