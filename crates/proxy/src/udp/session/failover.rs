//! Failover of a client to another balancer: its session keeps the client's port.

use std::time::{Duration, Instant};

use peername_sys::event::async_epoll::AsyncEpoll;

use super::Session;
use super::role::{AdmittedDatagram, Role};
use super::table::SessionTable;
use crate::outcome::Failure;
use crate::udp::endpoints::ClientKey;
use crate::udp::lru_table::EntryId;

impl<R: Role> SessionTable<R> {
    /// The session to fail over: that of the same client through another balancer, which has sent nothing for
    /// [`FAILOVER_AFTER`]. The session holds the client's port, which a second session could not have.
    ///
    /// `None` where there is no such session, where another one would have to be evicted, and where the current rules send the
    /// client to another backend.
    pub(super) fn failover_candidate(
        &mut self,
        admitted: &AdmittedDatagram,
        now: Instant,
    ) -> Result<Option<EntryId>, Failure> {
        let client = ClientKey::from_session(&admitted.key);
        let Some(&id) = client.and_then(|client| self.clients.get(&client)) else {
            return Ok(None);
        };
        let Some(&Session {
            last_request,
            upstream,
            ..
        }) = self.table.get(id)
        else {
            return Ok(None);
        };
        let is_idle = now.duration_since(last_request) >= FAILOVER_AFTER
            && !self.touch_if_used_by_kernel(id, now);
        let candidate = self.table.eviction_candidate_for(admitted.balancer);
        if !is_idle || candidate.is_some() {
            return Ok(None);
        }
        let target = self.role.target(admitted)?;
        Ok((target == Some(upstream)).then_some(id))
    }

    /// Moves a session to the balancer of `admitted`: it keeps its socket, with the client's port, and its counts.
    pub(super) fn fail_over(
        &mut self,
        id: EntryId,
        admitted: &AdmittedDatagram,
        now: Instant,
        poller: &AsyncEpoll,
    ) -> Result<EntryId, Failure> {
        let headers = self.role.headers(admitted)?;
        let mut session = self.table.remove(id).ok_or(Failure::NoService)?;
        self.reclaim_from_kernel(&mut session);
        let _ = poller.delete(&session.socket);
        (session.key, session.headers) = (admitted.key, headers);
        let is_answered = session.is_answered();
        let id = self.insert(admitted.key, admitted.balancer, now, session, poller)?;
        self.table.touch(id, now, is_answered);
        Ok(id)
    }
}

/// The time without a request through one balancer after which the session fails over to another. If two balancers share a
/// client's datagrams, each keeps a session of its own.
const FAILOVER_AFTER: Duration = Duration::from_secs(3);
