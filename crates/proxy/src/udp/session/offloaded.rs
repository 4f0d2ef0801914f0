//! Kernel offload of a worker's sessions: hands them to the kernel, takes them back, counts what it carried.

use std::mem;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use peername_kernel::address_pair::AddressPair;
use peername_kernel::data_path::Epoch;
use peername_kernel::flow::Flow;
use peername_sys::udp;

use super::Session;
use super::role::Role;
use super::table::SessionTable;
use crate::udp::endpoints::ReplyTo;
use crate::udp::lru_table::EntryId;
use crate::udp::offload::candidate::OffloadCandidate;

impl<R: Role> SessionTable<R> {
    /// Notes a request with this header, and offloads the session once it is steady ([`OffloadCandidate`]).
    ///
    /// A request that differs from those before takes an offloaded session back; so does the first one after all flows
    /// were cleared. The session then starts over as a candidate.
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
        if candidate.is_excluded() {
            return;
        }
        let is_equal = *candidate.header == *header && candidate.reply_to == *reply_to;
        let usage = match &candidate.installed {
            // Too large for the egress device, or a fragment: user space sends this one, and the session stays offloaded.
            Some(installed) if is_equal && !kernel.is_evicted(installed) => return,
            Some(installed) => Some(kernel.remove(installed)),
            None => None,
        };
        if is_equal && usage.is_none() {
            candidate.equal_in_a_row = candidate.equal_in_a_row.saturating_add(1);
        } else {
            // A flow that was evicted is no change of the session.
            let changes = candidate.changes + u32::from(!is_equal);
            **candidate = OffloadCandidate {
                changes,
                ..OffloadCandidate::new(header, reply_to)
            };
        }
        let should_install = candidate.should_install();
        if let Some(usage) = usage {
            session.add_kernel_usage(&usage);
        }
        if should_install {
            self.offload(id, epoch);
        }
    }

    /// Installs a session's flow in the kernel, if the role allows it and the kernel takes it.
    fn offload(&mut self, id: EntryId, epoch: Epoch) {
        let Some(kernel) = &self.kernel else { return };
        let Some(session) = self.table.get(id) else {
            return;
        };
        let installed = self.role.offload_port(session).and_then(|port| {
            let local = session.reply_to.local?;
            let max_reply =
                self.egress_cache
                    .max_packet(&local, session.reply_to.peer.ip(), Instant::now())?;
            kernel.install(&session.flow(port, max_reply)?, epoch)
        });
        let session = self.table.get_mut(id);
        if let Some(candidate) = session.and_then(|session| session.offload.as_mut()) {
            candidate.installed = installed;
        }
    }

    /// Marks a session as used if the kernel has carried datagrams of it since the last call. Returns whether it has.
    ///
    /// The kernel's counts decide. The time of the last datagram alone would not do: it is exact to a tick only, within
    /// which a session may be checked and used again.
    pub(super) fn touch_if_used_by_kernel(&mut self, id: EntryId, now: Instant) -> bool {
        let mut last = || {
            let candidate = self.table.get_mut(id)?.offload.as_mut()?;
            let usage = self.kernel.as_ref()?.usage(candidate.installed.as_ref()?);
            let is_new = usage != mem::replace(&mut candidate.last_usage, usage);
            now.checked_sub(usage.idle_time()?).filter(|_| is_new)
        };
        match (last(), self.table.last_used(id)) {
            (Some(last), Some(used)) if last + KERNEL_TICK > used => {
                self.table.touch(id, last.max(used), true);
                true
            }
            _ => false,
        }
    }

    /// Takes a session back from the kernel for good, because it is closed or moved, and counts what the kernel did.
    pub(super) fn reclaim_from_kernel(&self, session: &mut Session) {
        let installed = session
            .offload
            .take()
            .and_then(|candidate| candidate.installed);
        if let (Some(installed), Some(kernel)) = (installed, &self.kernel) {
            session.add_kernel_usage(&kernel.remove(&installed));
        }
    }

    /// Adds what the kernel carried to the tally. Takes all sessions back where a setting or a route has changed, because
    /// the kernel would send elsewhere than user space.
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
            self.tally.count_dropped("kernel", failed);
        }
    }
}

impl Session {
    /// The flow as the kernel's program needs it. `None` where a call about the socket fails.
    fn flow(&self, port: u16, max_reply: u16) -> Option<Flow<'_>> {
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
            path_mtu: max_reply,
            mark: udp::mark(&self.socket).ok()?,
        })
    }
}

/// Resolution of the kernel's time of a flow's last datagram: CONFIG_HZ is 100 at least.
const KERNEL_TICK: Duration = Duration::from_millis(10);
