//! A worker's sessions and the kernel: which are left to it, and what it did for them.

use std::mem;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use peername_kernel::address_pair::AddressPair;
use peername_kernel::data_path::Epoch;
use peername_kernel::flow::Flow;
use peername_sys::netlink::LOOPBACK;
use peername_sys::udp;

use super::Session;
use super::role::Role;
use super::table::SessionTable;
use crate::udp::endpoints::ReplyTo;
use crate::udp::lru_table::EntryId;
use crate::udp::offload::candidate::OffloadCandidate;
use crate::udp::offload::egress_cache::EgressCache;

impl<R: Role> SessionTable<R> {
    /// A request came this way with this header; perhaps those that follow are left to the kernel.
    pub(super) fn observe(&mut self, id: EntryId, header: &[u8], reply_to: &ReplyTo, epoch: Epoch) {
        let Some(kernel) = &self.kernel else { return };
        let Some(session) = self.table.get_mut(id) else {
            return;
        };
        if self.draining || !session.is_answered() {
            return;
        }
        let candidate = session
            .offload
            .get_or_insert_with(|| Box::new(OffloadCandidate::new(header, reply_to)));
        if candidate.changes > MAX_CHANGES {
            return;
        }
        let is_equal = *candidate.header == *header && candidate.reply_to == *reply_to;
        let usage = match &candidate.installed {
            // Too large a one, or a fragment: it is for us, the others are not.
            Some(installed) if is_equal && !kernel.is_evicted(installed) => return,
            Some(installed) => Some(kernel.remove(installed)),
            None => None,
        };
        if is_equal && usage.is_none() {
            candidate.equal = candidate.equal.saturating_add(1);
        } else {
            let changes = candidate.changes + 1;
            **candidate = OffloadCandidate {
                changes,
                ..OffloadCandidate::new(header, reply_to)
            };
        }
        // If it is not installed, for want of room perhaps, it is some day.
        let is_steady = candidate.equal >= MIN_EQUAL_REQUESTS && candidate.equal.is_power_of_two();
        if let Some(usage) = usage {
            session.add_kernel_usage(&usage);
        }
        if is_steady {
            self.offload(id, epoch);
        }
    }

    fn offload(&mut self, id: EntryId, epoch: Epoch) {
        let Some(kernel) = &self.kernel else { return };
        let Some(session) = self.table.get(id) else {
            return;
        };
        let installed = self.role.offload_port(session).and_then(|port| {
            let most = session.max_reply_packet(&mut self.egress_cache)?;
            kernel.install(&session.flow(port, most)?, epoch)
        });
        let session = self.table.get_mut(id);
        if let Some(candidate) = session.and_then(|session| session.offload.as_mut()) {
            candidate.installed = installed;
        }
    }

    /// Whether the kernel has had to do with a session since this was last asked. Takes note of when.
    ///
    /// Its counts tell. When the last datagram came is known to a tick only, within which a session may be looked at
    /// and used again.
    pub(super) fn touch_if_used_by_kernel(&mut self, id: EntryId, now: Instant) -> bool {
        let mut last = || {
            let candidate = self.table.get_mut(id)?.offload.as_mut()?;
            let usage = self.kernel.as_ref()?.usage(candidate.installed.as_ref()?);
            let is_new = usage != mem::replace(&mut candidate.last_usage, usage);
            now.checked_sub(usage.idle()?).filter(|_| is_new)
        };
        match (last(), self.table.last_used(id)) {
            (Some(last), Some(used)) if last + KERNEL_TICK > used => {
                self.table.touch(id, last.max(used), true);
                true
            }
            _ => false,
        }
    }

    /// Takes a session back from the kernel for good: it has ended.
    pub(super) fn reclaim_from_kernel(&self, session: &mut Session) {
        let installed = session
            .offload
            .take()
            .and_then(|candidate| candidate.installed);
        if let (Some(installed), Some(kernel)) = (installed, &self.kernel) {
            session.add_kernel_usage(&kernel.remove(&installed));
        }
    }

    /// Sees that the kernel still does what would be done here, and adds to the tally what it did.
    pub(super) fn collect_kernel_totals(&mut self) {
        let Some(kernel) = &self.kernel else { return };
        kernel.check_sysctls();
        if self.egress_cache.refresh() {
            kernel.evict_all();
        }
        let Some(news) = kernel.take_totals() else {
            return;
        };
        self.tally.received += news.requests + news.failed_requests;
        self.tally.to_upstream += news.requests;
        self.tally.replies += news.replies + news.failed_replies;
        self.tally.to_downstream += news.replies;
        self.tally.in_kernel += news.requests + news.replies;
        let failed = news.failed_requests + news.failed_replies;
        if failed > 0 {
            self.tally.dropped("kernel", failed);
        }
    }
}

impl Session {
    /// The largest IP packet that can go back to the balancer; `None` where replies leave by another device than
    /// requests come in by.
    fn max_reply_packet(&self, egress_cache: &mut EgressCache) -> Option<u16> {
        let local = self.reply_to.local?;
        if local.interface == LOOPBACK {
            return Some(u16::MAX);
        }
        let way = egress_cache.find(local.ip, self.reply_to.peer.ip())?;
        let most = u16::try_from(way.mtu).unwrap_or(u16::MAX);
        (way.interface == local.interface).then_some(most)
    }

    /// What the kernel is to do. `None` where its socket has no address.
    fn flow(&self, port: u16, most: u16) -> Option<Flow<'_>> {
        let (peer, local) = (self.reply_to.peer.0, self.reply_to.local?);
        Some(Flow {
            downstream: AddressPair {
                from: peer,
                to: SocketAddr::new(local.ip, port),
            },
            header: &self.offload.as_ref()?.header,
            upstream: AddressPair {
                from: self.socket.local_addr().ok()?,
                to: self.upstream,
            },
            reply_header: &self.headers.reply,
            interface: local.interface,
            path_mtu: most,
            mark: udp::mark(&self.socket).ok()?,
        })
    }
}

/// Requests in a row that make a session candidate: the kernel is installed once for many datagrams.
const MIN_EQUAL_REQUESTS: u32 = 4;
/// How inexact the kernel is about when: CONFIG_HZ is 100 at least.
const KERNEL_TICK: Duration = Duration::from_millis(10);
/// A session that is so often otherwise stays here: to tell the kernel costs more than some datagrams.
const MAX_CHANGES: u32 = 16;
