//! Handover of a worker's sessions: their state, and sessions made of it.

use std::net::UdpSocket;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use peername_server::addr::{ClaimedSource, Target};
use peername_sys::event::async_epoll::AsyncEpoll;

use super::role::Role;
use super::table::SessionTable;
use super::{OverflowCounter, Session};
use crate::telemetry::record::session::{SessionRecord, SessionStart};
use crate::udp::endpoints::{ClientKey, ReplyTo, SessionKey};
use crate::udp::handover::{FlowState, SessionState, before};
use crate::udp::lru_table::EntryRef;

impl<R: Role> SessionTable<R> {
    /// Takes all sessions back from the kernel, with its counts: from now on every datagram waits in a socket.
    pub(crate) fn freeze(&mut self, now: Instant) {
        let Some(kernel) = self.kernel.clone() else {
            return;
        };
        kernel.evict_all();
        let ids: Vec<_> = self.table.entries().map(|entry| entry.id).collect();
        for id in ids {
            self.touch_if_used_by_kernel(id, now);
            let Some(session) = self.table.get_mut(id) else {
                continue;
            };
            let candidate = session.offload.take();
            if let Some(installed) = candidate.and_then(|candidate| candidate.installed) {
                session.add_kernel_usage(&kernel.remove(&installed));
            }
        }
        self.collect_kernel_totals();
        self.report();
    }

    /// The state of all sessions with their sockets, and of all flows; the least recently used ones first.
    pub(crate) fn states(
        &self,
        now: Instant,
    ) -> (Vec<(SessionState, BorrowedFd<'_>)>, Vec<FlowState>) {
        let mut entries: Vec<_> = self.table.entries().collect();
        entries.sort_by_key(|entry| entry.used);
        let sessions = entries.into_iter().map(|entry| {
            let client = ClientKey::of(entry.key);
            let first = client.and_then(|client| self.clients.get(&client));
            let state = entry.value.state(&entry, first == Some(&entry.id), now);
            (state, entry.value.socket.as_fd())
        });
        let sessions = sessions.collect();
        (sessions, self.role.flows(now))
    }

    /// Adds a session of the previous process. Where that can't be, as with lower limits, it is closed.
    pub(crate) fn restore(
        &mut self,
        state: &SessionState,
        socket: OwnedFd,
        now: Instant,
        poller: &AsyncEpoll,
    ) {
        let Some(headers) = state.headers.decode() else {
            return;
        };
        let (key, reply_to) = (state.key, ReplyTo::from(state.reply_to));
        let start = SessionStart {
            listener: self.listener_address(&key),
            is_redirected: reply_to.original_destination.is_some(),
            local: None,
            peer: reply_to.peer,
            client: key.client.map(ClaimedSource),
            target: Target(state.upstream),
        };
        let mut record = SessionRecord::begin(&self.counters, start);
        record.resume(&state.record);
        let mut session = Session::new(
            key,
            reply_to,
            before(now, state.since_request),
            UdpSocket::from(socket),
            state.upstream,
            headers,
            record,
        );
        session.overflow = OverflowCounter(state.overflow);
        self.evict_for(state.balancer, now);
        let used = before(now, state.idle);
        let Ok(id) = self.insert(key, state.balancer, used, session, poller) else {
            return;
        };
        self.table.touch(id, used, state.is_answered);
        if let Some(client) = ClientKey::of(&key)
            && state.has_client_port
        {
            self.clients.insert(client, id);
        }
    }

    /// Adds a flow of the previous process.
    pub(crate) fn restore_flow(&mut self, flow: &FlowState, now: Instant) {
        self.role.restore_flow(flow, now);
    }

    /// Forgets all sessions: another process serves them.
    pub(crate) fn hand_over(&mut self) {
        while let Some(id) = self.table.eviction_candidate() {
            if let Some(session) = self.table.remove(id) {
                session.record.hand_over();
            }
        }
        self.report();
    }
}

impl Session {
    fn state(
        &self,
        entry: &EntryRef<'_, SessionKey, Self>,
        has_client_port: bool,
        now: Instant,
    ) -> SessionState {
        let since = |then: Instant| now.saturating_duration_since(then);
        SessionState {
            key: self.key,
            balancer: entry.balancer,
            reply_to: (&self.reply_to).into(),
            upstream: self.upstream,
            headers: (&self.headers).into(),
            idle: since(entry.used),
            since_request: since(self.last_request),
            is_answered: entry.is_answered,
            has_client_port,
            overflow: self.overflow.0,
            record: self.record.state(),
        }
    }
}
