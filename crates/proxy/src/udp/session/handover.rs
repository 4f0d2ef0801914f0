//! Handover of a worker's sessions: copies their state for a new process, and restores sessions of a previous one.

use std::net::UdpSocket;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use peername_server::addr::{LocalAddr, Target};
use peername_sys::event::async_epoll::AsyncEpoll;

use super::role::Role;
use super::table::SessionTable;
use super::{OverflowCounter, Session};
use crate::telemetry::record::session::{SessionRecord, SessionStart};
use crate::udp::endpoints::{ClientKey, SessionKey};
use crate::udp::handover::{FlowState, SessionState, instant_before};
use crate::udp::lru_table::EntryRef;

impl<R: Role> SessionTable<R> {
    /// The state of all sessions with their sockets, and of all flows; both begin with the least recently used.
    pub(crate) fn states(
        &self,
        now: Instant,
    ) -> (Vec<(SessionState, BorrowedFd<'_>)>, Vec<FlowState>) {
        let mut entries: Vec<_> = self.table.entries().collect();
        entries.sort_by_key(|entry| entry.used_at);
        let sessions = entries
            .into_iter()
            .map(|entry| {
                let client = ClientKey::from_session(entry.key);
                let port_holder = client.and_then(|client| self.clients.get(&client));
                let has_client_port = port_holder == Some(&entry.id);
                let state = entry.value.state(&entry, has_client_port, now);
                (state, entry.value.socket.as_fd())
            })
            .collect();
        (sessions, self.role.flows(now))
    }

    /// Adds a session of the previous process. If that is impossible, the session's socket is closed.
    pub(crate) fn restore(
        &mut self,
        state: SessionState,
        socket: OwnedFd,
        now: Instant,
        poller: &AsyncEpoll,
    ) {
        let (key, reply_to) = (state.key, state.reply_to);
        let start = SessionStart {
            listener: self.listener_address(&key),
            is_redirected: reply_to.original_destination.is_some(),
            local: state.record.local.map(LocalAddr),
            peer: reply_to.peer,
            facts: state.record.facts,
            target: Target(state.upstream),
        };
        let record = SessionRecord::resume(&self.counters, start, &state.record);
        let mut session = Session::new(
            key,
            reply_to,
            instant_before(now, state.since_request),
            UdpSocket::from(socket),
            state.upstream,
            state.headers,
            record,
        );
        session.overflow = OverflowCounter(state.overflow);
        self.evict_for(state.balancer, now);
        let used_at = instant_before(now, state.idle);
        let Ok(id) = self.insert(key, state.balancer, used_at, session, poller) else {
            return;
        };
        self.table.touch(id, used_at, state.is_answered);
        if let Some(client) = ClientKey::from_session(&key)
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
            reply_to: self.reply_to,
            upstream: self.upstream,
            headers: self.headers.clone(),
            idle: since(entry.used_at),
            since_request: since(self.last_request),
            is_answered: entry.is_answered,
            has_client_port,
            overflow: self.overflow.0,
            record: self.record.state(),
        }
    }
}
