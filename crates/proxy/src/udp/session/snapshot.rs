//! Snapshots of a worker's sessions.

use std::time::Instant;

use peername_observe::connections::{
    ConnectionSnapshot, ConnectionState, Protocol, RelayMethod, SNAPSHOT_BATCH, seconds,
};

use super::Session;
use super::role::Role;
use super::table::SessionTable;
use crate::udp::listing::SessionBatch;

impl<R: Role> SessionTable<R> {
    /// Copies the sessions of a batch that begins at slot `from`.
    pub(super) fn snapshots(&self, from: usize) -> SessionBatch {
        let now = Instant::now();
        let to = from + SNAPSHOT_BATCH;
        let batch = self
            .table
            .in_slots(from..to)
            .map(|session| self.snapshot(session.value, session.used_at, now))
            .collect();
        (batch, (to < self.table.slot_count()).then_some(to))
    }

    fn snapshot(&self, session: &Session, used_at: Instant, now: Instant) -> ConnectionSnapshot {
        let record = &session.record;
        let client = record.fields.facts.claim.map(|claim| claim.0);
        let usage = self
            .kernel
            .as_ref()
            .and_then(|kernel| session.kernel_usage(kernel));
        let mut tally = record.tally;
        let mut idle = now.saturating_duration_since(used_at);
        if let Some(usage) = &usage {
            tally.to_upstream += usage.request_bytes;
            tally.to_downstream += usage.reply_bytes;
            idle = usage
                .idle_time()
                .map_or(idle, |in_kernel| idle.min(in_kernel));
        }
        ConnectionSnapshot {
            id: record.id,
            listener: record.listener.0,
            protocol: Protocol::Udp,
            peer: session.reply_to.peer.0,
            client: client.or_else(|| self.role.unclaimed_client(session)),
            target: Some(session.upstream),
            host: None,
            state: if tally.to_downstream > 0 || session.is_answered() {
                ConnectionState::Answered
            } else {
                ConnectionState::Unanswered
            },
            age_s: seconds(record.age()),
            idle_s: seconds(idle),
            bytes_in: Some(tally.to_upstream),
            bytes_out: Some(tally.to_downstream),
            relay: Some(match usage {
                Some(_) => RelayMethod::Kernel,
                None => RelayMethod::Userspace,
            }),
        }
    }
}
