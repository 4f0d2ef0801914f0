//! Verification of open sessions: whether their backends still see the clients.
//!
//! A NAT rule does not apply to a session that connection tracking knew before the rule was added. But connection tracking may
//! begin only with the rule, it forgets idle sessions, and the table that kept a session untracked may be removed.

use std::time::{Duration, Instant};

use super::Session;
use super::role::Role;
use crate::udp::endpoints::SessionKey;
use crate::udp::lru_table::LruTable;

/// Which sessions are verified next.
#[derive(Debug, Default)]
pub(super) struct Verification {
    /// When a session was last found whose client's address is replaced. Sessions that were not verified since are verified
    /// before their next datagram is sent.
    suspect_since: Option<Instant>,
    /// The first slot of the next batch.
    next_slot: usize,
}

impl Verification {
    /// Whether the session has to be verified before its next datagram is sent.
    pub(super) fn is_due(&self, session: &Session, now: Instant) -> bool {
        now.duration_since(session.last_request) >= TRACKING_TIMEOUT
            || self
                .suspect_since
                .is_some_and(|since| session.verified_at <= since)
    }

    /// Verifies the sessions of the next few slots that have had a request since they were last verified. Called once a second.
    /// Requests that the kernel carries don't count, because they pass no NAT rule.
    pub(super) fn verify_batch<R: Role>(
        &mut self,
        table: &mut LruTable<SessionKey, Session>,
        role: &R,
        now: Instant,
    ) {
        let from = self.next_slot;
        let to = from + SLOTS_PER_SECOND;
        let used: Vec<_> = table
            .in_slots(from..to)
            .filter(|session| session.value.verified_at < session.value.last_request)
            .map(|session| session.id)
            .collect();
        for id in used {
            if let Some(session) = table.get_mut(id) {
                session.verified_at = now;
                if role.verify_source(session).is_err() {
                    self.suspect_since = Some(now);
                }
            }
        }
        self.next_slot = if to < table.slot_count() { to } else { 0 };
    }
}

/// An idle session counts as tracked for this long. Connection tracking keeps a translation for 30 s at least without a
/// datagram (`nf_conntrack_udp_timeout`).
const TRACKING_TIMEOUT: Duration = Duration::from_secs(20);
/// Slots whose sessions are verified in a second. Each takes about 10 us, in which the worker serves no datagram.
const SLOTS_PER_SECOND: usize = 64;
