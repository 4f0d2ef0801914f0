//! Verification of open sessions: whether their backends still see the clients.
//!
//! A NAT rule does not apply to a session that connection tracking knew before the rule was added. But connection tracking may
//! begin only with the rule, it forgets idle sessions, and the table that kept a session untracked may be removed.

use std::time::{Duration, Instant};

use super::Session;

/// Which sessions are verified next.
#[derive(Debug, Default)]
pub(super) struct Verification {
    /// When a session was last found whose client's address is replaced. Sessions that were not verified since are verified
    /// before their next datagram is sent.
    pub(super) suspect_since: Option<Instant>,
    /// The first slot of the next batch.
    pub(super) next_slot: usize,
}

impl Verification {
    /// Whether the session has to be verified before its next datagram is sent.
    pub(super) fn is_due(&self, session: &Session, now: Instant) -> bool {
        now.duration_since(session.last_request) >= TRACKING_TIMEOUT
            || self
                .suspect_since
                .is_some_and(|since| session.verified_at <= since)
    }
}

/// An idle session counts as tracked for this long. Connection tracking keeps a translation for 30 s at least without a
/// datagram (`nf_conntrack_udp_timeout`).
const TRACKING_TIMEOUT: Duration = Duration::from_secs(20);
/// Slots whose sessions are verified in a second. Each takes about 10 us, in which the worker serves no datagram.
pub(super) const SLOTS_PER_SECOND: usize = 64;
