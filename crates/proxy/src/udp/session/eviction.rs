//! Eviction: closes a session at a limit of sessions, or when file descriptors or ports are exhausted.

use std::net::IpAddr;
use std::time::Instant;

use peername_sys::SyscallError;
use peername_sys::throttle::Throttle;

use super::role::Role;
use super::table::SessionTable;
use crate::outcome::SessionEnd;
use crate::udp::lru_table::EntryId;

impl<R: Role> SessionTable<R> {
    /// Evicts a session if a limit leaves no room for another one of `balancer`.
    /// [`LruTable`](crate::udp::lru_table::LruTable) chooses the candidate.
    ///
    /// Offloaded sessions look idle here, so a candidate that the kernel still uses is marked as used and skipped.
    pub(super) fn evict_for(&mut self, balancer: IpAddr, now: Instant) {
        let reason = if self.table.is_balancer_at_limit(balancer) {
            "balancer_limit"
        } else {
            "session_limit"
        };
        for _ in 0..MAX_BUSY_SKIPS {
            match self.table.eviction_candidate_for(balancer) {
                Some(id) if self.touch_if_used_by_kernel(id, now) => {}
                Some(id) => return self.evict(id, reason),
                None => return,
            }
        }
        if let Some(id) = self.table.eviction_candidate_for(balancer) {
            self.evict(id, reason);
        }
    }

    /// Evicts the next eviction candidate of all sessions, because `error` reports that file descriptors or this host's ports
    /// are exhausted. Evicts none if the kernel uses all candidates.
    pub(super) fn evict_for_socket(&mut self, error: &SyscallError, now: Instant) {
        let reason = if error.is_udp_port_exhaustion() {
            "ports"
        } else {
            "descriptors"
        };
        for _ in 0..MAX_BUSY_SKIPS {
            match self.table.eviction_candidate() {
                Some(id) if self.touch_if_used_by_kernel(id, now) => {}
                Some(id) => {
                    warn_of_exhaustion(error);
                    return self.evict(id, reason);
                }
                None => return,
            }
        }
    }

    fn evict(&mut self, id: EntryId, reason: &'static str) {
        self.tally.count_evicted(reason);
        self.close(id, SessionEnd::Evicted);
    }
}

fn warn_of_exhaustion(error: &SyscallError) {
    if let Some(suppressed) = EXHAUSTION_LOG.pass() {
        let remedy = if error.is_udp_port_exhaustion() {
            "no port is left to the backend: widen net.ipv4.ip_local_port_range"
        } else {
            "raise LimitNOFILE or `ulimit -n`"
        };
        tracing::warn!(
            suppressed,
            "{error}: a UDP session is evicted for a new one; {remedy}, or lower --max-sessions"
        );
    }
}

/// Limit of eviction candidates that are skipped because the kernel still uses them. Bounds the work of one eviction.
const MAX_BUSY_SKIPS: usize = 16;

static EXHAUSTION_LOG: Throttle = Throttle::new();
