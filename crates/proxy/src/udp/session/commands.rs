//! Commands of the control side: lists the sessions, and closes those of clients that a changed list denies (revocation).

use super::role::Role;
use super::table::SessionTable;
use crate::outcome::SessionEnd;
use crate::udp::listing::{RevokedBatch, SessionCommand};
use peername_observe::connections::SNAPSHOT_BATCH;

impl<R: Role> SessionTable<R> {
    /// Executes a command of the control side.
    pub(crate) fn execute(&mut self, command: SessionCommand) {
        // The control side may have stopped waiting.
        let _ = match command {
            SessionCommand::List { from, reply } => reply.send(self.snapshots(from)).is_ok(),
            SessionCommand::Revoke { from, reply } => reply.send(self.revoke(from)).is_ok(),
        };
    }

    /// Closes the sessions of denied clients in a batch that begins at slot `from`.
    fn revoke(&mut self, from: usize) -> RevokedBatch {
        let to = from + SNAPSHOT_BATCH;
        let denied: Vec<_> = self
            .table
            .in_slots(from..to)
            .filter(|session| self.role.is_denied(session.value))
            .map(|session| session.id)
            .collect();
        for &id in &denied {
            self.close(id, SessionEnd::AccessRevoked);
        }
        self.report();
        (denied.len(), (to < self.table.slot_count()).then_some(to))
    }
}
