//! Kernel offload: steady sessions are carried by an eBPF program ([`peername_kernel`]). Installs and removes their flows, and
//! counts the datagrams that the kernel carried.
//!
//! A session is steady once the backend has answered it and some requests in a row have come by the same path with the
//! same header ([`candidate`]). From then on the kernel treats such datagrams as user space would. A datagram that differs
//! still arrives in user space, which then reclaims the session from the kernel and starts over. So the kernel holds no
//! policy, only its result.

pub(super) mod candidate;
pub(super) mod egress_cache;

use std::mem;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use peername_kernel::address_pair::AddressPair;
use peername_kernel::data_path::{DataPath, Epoch};
use peername_kernel::flow::Flow;
use peername_kernel::totals::Total;
use peername_kernel::usage::Usage;
use peername_sys::udp;

use super::Session;
use super::role::Role;
use super::table::SessionTable;
use crate::udp::endpoints::ReplyTo;
use crate::udp::lru_table::EntryId;
use candidate::OffloadCandidate;

impl<R: Role> SessionTable<R> {
    /// Notes a request with this header, and offloads the session once it is steady ([`OffloadCandidate`]).
    ///
    /// Reclaims an offloaded session if the request differs from those before, or the session's flow was evicted. The session
    /// then starts over as a candidate.
    pub(super) fn note_request(
        &mut self,
        id: EntryId,
        header: &[u8],
        reply_to: &ReplyTo,
        epoch: Epoch,
    ) {
        if self.is_draining() {
            return;
        }
        let Some(kernel) = &self.kernel else { return };
        let Some(session) = self.table.get_mut(id) else {
            return;
        };
        if !session.is_answered() {
            return;
        }
        let candidate = session
            .offload
            .get_or_insert_with(|| Box::new(OffloadCandidate::new(header, reply_to)));
        if candidate.is_excluded() {
            return;
        }
        let is_equal = candidate.is_equal(header, reply_to);
        let usage = match &candidate.installed {
            // The kernel passes large or fragmented requests to user space. The session stays offloaded.
            Some(installed) if is_equal && !kernel.is_evicted(installed) => return,
            Some(installed) => Some(kernel.remove(installed)),
            None => None,
        };
        if is_equal && usage.is_none() {
            candidate.count_equal();
        } else {
            candidate.start_over(header, reply_to);
        }
        let should_install = candidate.should_install();
        if let Some(usage) = usage {
            session.add_kernel_usage(&usage);
        }
        if should_install {
            self.offload(id, epoch);
        }
    }

    /// Installs a session's flow in the kernel, if the role allows that and the kernel can carry the flow.
    fn offload(&mut self, id: EntryId, epoch: Epoch) {
        let Some(kernel) = &self.kernel else { return };
        let Some(session) = self.table.get(id) else {
            return;
        };
        let installed = self.role.offload_port(session).and_then(|port| {
            let local = session.reply_to.local?;
            let path_mtu =
                self.egress_cache
                    .max_packet(&local, session.reply_to.peer.ip(), Instant::now())?;
            kernel.install(&session.flow(port, path_mtu)?, epoch)
        });
        let session = self.table.get_mut(id);
        if let Some(candidate) = session.and_then(|session| session.offload.as_mut()) {
            candidate.installed = installed;
        }
    }

    /// Marks a session as used if the kernel has carried datagrams of it since the last call, and the last of them not before the
    /// session's last use. Returns whether it has marked it.
    ///
    /// The kernel's counts decide, because its time of the last datagram is exact only to a tick. A session may be checked and
    /// then used again within one tick.
    pub(super) fn touch_if_used_by_kernel(&mut self, id: EntryId, now: Instant) -> bool {
        match (self.take_kernel_use(id, now), self.table.last_used(id)) {
            (Some(in_kernel), Some(used)) if in_kernel + KERNEL_TICK > used => {
                self.table.touch(id, in_kernel.max(used), true);
                true
            }
            _ => false,
        }
    }

    /// When the kernel last carried a datagram of the session; `None` if it has carried none since the last call.
    fn take_kernel_use(&mut self, id: EntryId, now: Instant) -> Option<Instant> {
        let candidate = self.table.get_mut(id)?.offload.as_mut()?;
        let usage = self.kernel.as_ref()?.usage(candidate.installed.as_ref()?);
        let is_new = usage != mem::replace(&mut candidate.last_usage, usage);
        now.checked_sub(usage.idle_time()?).filter(|_| is_new)
    }

    /// Reclaims a session that is closed or moved, and so not in the table, from the kernel.
    pub(super) fn reclaim_from_kernel(&self, session: &mut Session) {
        if let Some(kernel) = &self.kernel {
            session.reclaim_from(kernel);
        }
    }

    /// Reclaims all sessions from the kernel, with its counts. From now on each datagram comes to a socket of this
    /// process, and waits there until it is received.
    pub(crate) fn reclaim_all_from_kernel(&mut self, now: Instant) {
        let Some(kernel) = self.kernel.clone() else {
            return;
        };
        kernel.evict_all();
        let ids: Vec<_> = self.table.entries().map(|entry| entry.id).collect();
        for id in ids {
            self.touch_if_used_by_kernel(id, now);
            if let Some(session) = self.table.get_mut(id) {
                session.reclaim_from(&kernel);
            }
        }
        self.collect_kernel_totals();
        self.report();
    }

    /// Adds the kernel's counts to the tally. Evicts all flows if a sysctl or a route has changed, because the kernel would
    /// send elsewhere than user space.
    pub(super) fn collect_kernel_totals(&mut self) {
        let Some(kernel) = &self.kernel else { return };
        kernel.check_sysctls();
        if self.egress_cache.refresh() {
            kernel.evict_all();
        }
        let Some(totals) = kernel.take_totals() else {
            return;
        };
        let tally = &mut self.tally;
        for (total, count) in totals.nonzero() {
            let (received, sent, drop_reason) = match total {
                Total::Requests(reason) => (&mut tally.received, &mut tally.to_upstream, reason),
                Total::Replies(reason) => (&mut tally.replies, &mut tally.to_downstream, reason),
            };
            *received += count;
            if let Some(reason) = drop_reason {
                tally.count_dropped(reason, count);
            } else {
                *sent += count;
                tally.in_kernel += count;
            }
        }
    }
}

impl Session {
    /// The kernel's counts of the session's flow, while that is installed.
    pub(super) fn kernel_usage(&self, kernel: &DataPath) -> Option<Usage> {
        let installed = self.offload.as_ref()?.installed.as_ref()?;
        Some(kernel.usage(installed))
    }

    /// Reclaims the session from the kernel, forgets its requests, and counts the datagrams that the kernel carried.
    fn reclaim_from(&mut self, kernel: &DataPath) {
        let candidate = self.offload.take();
        if let Some(installed) = candidate.and_then(|candidate| candidate.installed) {
            self.add_kernel_usage(&kernel.remove(&installed));
        }
    }

    /// Counts the datagrams that the kernel has carried.
    fn add_kernel_usage(&mut self, usage: &Usage) {
        self.record.tally.to_upstream += usage.request_bytes;
        self.record.tally.to_downstream += usage.reply_bytes;
        self.record.datagrams.to_upstream += usage.requests;
        self.record.datagrams.to_downstream += usage.replies;
    }

    /// The session's flow. `port`: the listener's; `path_mtu`: of replies. `None` where a call about the socket fails.
    fn flow(&self, port: u16, path_mtu: u16) -> Option<Flow<'_>> {
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
            path_mtu,
            mark: udp::mark(&self.socket).ok()?,
        })
    }
}

/// Resolution of the kernel's time of a flow's last datagram: CONFIG_HZ is 100 at least.
const KERNEL_TICK: Duration = Duration::from_millis(10);
