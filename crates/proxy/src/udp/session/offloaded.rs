//! A worker's sessions and the kernel: which are left to it, and what it did for them.

use std::mem;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use peername_kernel::flow::{self, Flow};
use peername_kernel::udp::Epoch;
use peername_sys::netlink::LOOPBACK;
use peername_sys::udp;

use super::Session;
use super::role::Role;
use super::table::Sessions;
use crate::udp::endpoints::Path;
use crate::udp::lru_table::Id;
use crate::udp::offload::candidate::Steady;
use crate::udp::offload::egress_cache::Ways;

impl<R: Role> Sessions<R> {
    /// A request came this way with this header; perhaps those that follow are left to the kernel.
    pub(super) fn observe(&mut self, id: Id, header: &[u8], path: &Path, epoch: Epoch) {
        let Some(kernel) = &self.kernel else { return };
        let Some(session) = self.table.get_mut(id) else {
            return;
        };
        if self.stopping || !session.is_answered() {
            return;
        }
        let steady = session
            .steady
            .get_or_insert_with(|| Box::new(Steady::new(header, path)));
        if steady.changes > CHANGES {
            return;
        }
        let is_alike = *steady.header == *header && steady.path == *path;
        let usage = match &steady.told {
            // Too large a one, or a fragment: it is for us, the others are not.
            Some(told) if is_alike && !kernel.is_cleared(told) => return,
            Some(told) => Some(kernel.take_back(told)),
            None => None,
        };
        if is_alike && usage.is_none() {
            steady.alike = steady.alike.saturating_add(1);
        } else {
            let changes = steady.changes + 1;
            **steady = Steady {
                changes,
                ..Steady::new(header, path)
            };
        }
        // If it is not told, for want of room perhaps, it is some day.
        let is_steady = steady.alike >= ALIKE && steady.alike.is_power_of_two();
        if let Some(usage) = usage {
            session.carried(&usage);
        }
        if is_steady {
            self.leave_to_kernel(id, epoch);
        }
    }

    fn leave_to_kernel(&mut self, id: Id, epoch: Epoch) {
        let Some(kernel) = &self.kernel else { return };
        let Some(session) = self.table.get(id) else {
            return;
        };
        let told = self.role.offload_port(session).and_then(|port| {
            let most = session.most_of_replies(&mut self.ways)?;
            kernel.tell(&session.flow(port, most)?, epoch)
        });
        let session = self.table.get_mut(id);
        if let Some(steady) = session.and_then(|session| session.steady.as_mut()) {
            steady.told = told;
        }
    }

    /// Whether the kernel has had to do with a session since this was last asked. Takes note of when.
    ///
    /// Its counts tell. When the last datagram came is known to a tick only, within which a session may be looked at
    /// and used again.
    pub(super) fn is_used_by_kernel(&mut self, id: Id, now: Instant) -> bool {
        let mut last = || {
            let steady = self.table.get_mut(id)?.steady.as_mut()?;
            let usage = self.kernel.as_ref()?.usage(steady.told.as_ref()?);
            let is_new = usage != mem::replace(&mut steady.known, usage);
            now.checked_sub(usage.idle()?).filter(|_| is_new)
        };
        match (last(), self.table.used(id)) {
            (Some(last), Some(used)) if last + TICK > used => {
                self.table.touch(id, last.max(used), true);
                true
            }
            _ => false,
        }
    }

    /// Takes a session back from the kernel for good: it has ended.
    pub(super) fn take_back(&self, session: &mut Session) {
        let told = session.steady.take().and_then(|steady| steady.told);
        if let (Some(told), Some(kernel)) = (told, &self.kernel) {
            session.carried(&kernel.take_back(&told));
        }
    }

    /// Sees that the kernel still does what would be done here, and adds to the tally what it did.
    pub(super) fn ask_kernel(&mut self) {
        let Some(kernel) = &self.kernel else { return };
        kernel.check();
        if self.ways.have_changed() {
            kernel.clear();
        }
        let Some(news) = kernel.news() else { return };
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
    fn most_of_replies(&self, ways: &mut Ways) -> Option<u16> {
        let local = self.path.local?;
        if local.interface == LOOPBACK {
            return Some(u16::MAX);
        }
        let way = ways.find(local.ip, self.path.peer.ip())?;
        let most = u16::try_from(way.mtu).unwrap_or(u16::MAX);
        (way.interface == local.interface).then_some(most)
    }

    /// What the kernel is to do. `None` where its socket has no address.
    fn flow(&self, port: u16, most: u16) -> Option<Flow<'_>> {
        let (peer, local) = (self.path.peer.0, self.path.local?);
        Some(Flow {
            downstream: flow::Path {
                from: peer,
                to: SocketAddr::new(local.ip, port),
            },
            header: &self.steady.as_ref()?.header,
            upstream: flow::Path {
                from: self.socket.local_addr().ok()?,
                to: self.upstream,
            },
            reply_header: &self.headers.reply,
            interface: local.interface,
            most,
            mark: udp::mark(&self.socket).ok()?,
        })
    }
}

/// Requests in a row that make a session steady: the kernel is told once for many datagrams.
const ALIKE: u32 = 4;
/// How inexact the kernel is about when: CONFIG_HZ is 100 at least.
const TICK: Duration = Duration::from_millis(10);
/// A session that is so often otherwise stays here: to tell the kernel costs more than some datagrams.
const CHANGES: u32 = 16;
