//! Eviction: closes a session at a limit of sessions, or when file descriptors, ports or memory are exhausted.

use std::net::IpAddr;
use std::time::Instant;

use peername_sys::SyscallError;

use super::role::Role;
use super::table::SessionTable;
use crate::outcome::{EvictionReason, SessionEnd};
use crate::udp::lru_table::EntryId;

impl<R: Role> SessionTable<R> {
    /// Evicts a session if a limit leaves no room for another one of `balancer`.
    /// [`LruTable`](crate::udp::lru_table::LruTable) chooses the candidate.
    ///
    /// Offloaded sessions look idle here, so a candidate that the kernel still uses is marked as used and skipped.
    pub(super) fn evict_for(&mut self, balancer: IpAddr, now: Instant) {
        let reason = if self.table.is_balancer_at_limit(balancer) {
            EvictionReason::BalancerLimit
        } else {
            EvictionReason::SessionLimit
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

    /// Evicts a session for another one of `balancer`, because `error` reports that file descriptors, this host's ports or the
    /// kernel's memory are exhausted: one of the same balancer, if that has its share of the sessions. Evicts none if the kernel
    /// uses all candidates.
    pub(super) fn evict_for_socket(
        &mut self,
        balancer: IpAddr,
        error: &SyscallError,
        now: Instant,
    ) {
        let reason = EvictionReason::from_socket_error(error);
        for _ in 0..MAX_BUSY_SKIPS {
            match self.table.eviction_candidate_if_full(balancer) {
                Some(id) if self.touch_if_used_by_kernel(id, now) => {}
                Some(id) => return self.evict(id, reason),
                None => return,
            }
        }
    }

    fn evict(&mut self, id: EntryId, reason: EvictionReason) {
        self.tally.count_evicted(reason.label());
        self.close(id, SessionEnd::Evicted(reason));
    }
}

/// Limit of eviction candidates that are skipped because the kernel still uses them. Bounds the work of one eviction.
const MAX_BUSY_SKIPS: usize = 16;
