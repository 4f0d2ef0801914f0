//! Verification of open sessions: whether their backends still see the clients.
//!
//! NAT rules that are added do not apply to what connection tracking knows already. But it may have begun only with them, it
//! forgets a session that is idle, and a table that kept a session from it may be removed.

use std::time::{Duration, Instant};

use super::Session;
use super::role::Role;
use super::table::SessionTable;

/// Which sessions are verified next.
#[derive(Debug, Default)]
pub(super) struct Verification {
    /// When a session was last found of which the address is replaced: each session that was last verified before is verified at
    /// its next datagram.
    suspect_since: Option<Instant>,
    /// The slot from which the next sessions are tried.
    next_slot: usize,
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

impl<R: Role> SessionTable<R> {
    /// Tries a few of the sessions that have had a request since they were last verified, in turn. Called once a second, so that
    /// of a few sessions each is tried each second. What the kernel carries passes no NAT rule.
    pub(super) fn verify_some(&mut self, now: Instant) {
        let from = self.verification.next_slot;
        let to = from + TRIED_PER_SECOND;
        let used: Vec<_> = self
            .table
            .in_slots(from..to)
            .filter(|session| session.value.verified_at < session.value.last_request)
            .map(|session| session.id)
            .collect();
        for id in used {
            if let Some(session) = self.table.get_mut(id) {
                session.verified_at = now;
                if self.role.verify_source(session).is_err() {
                    self.verification.suspect_since = Some(now);
                }
            }
        }
        self.verification.next_slot = if to < self.table.slots() { to } else { 0 };
    }
}

/// Connection tracking keeps a translation for 30 s at least without a datagram (`nf_conntrack_udp_timeout`).
const TRACKED_FOR: Duration = Duration::from_secs(20);
/// Each takes about 10 us, in which the worker serves no datagram.
const TRIED_PER_SECOND: usize = 64;
