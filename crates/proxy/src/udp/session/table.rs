//! The session table of one worker: looks up the session of a datagram, opens sessions and closes them.
//!
//! [`super::eviction`] closes sessions at a limit, [`super::failover`] moves a session to another balancer,
//! [`super::offload`] offloads sessions to the kernel, [`super::commands`] lists them and closes those of denied clients, and
//! [`super::verification`] checks whether backends still see the clients.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use peername_kernel::data_path::DataPath;
use peername_server::addr::{ClaimedSource, LocalAddr, Target};
use peername_sys::NameCall;
use peername_sys::Transport;
use peername_sys::event::async_epoll::AsyncEpoll;
use peername_sys::throttle::Throttle;
use peername_sys::udp;

use super::Session;
use super::offload::egress_cache::EgressCache;
use super::role::{AdmittedDatagram, Role};
use super::verification::Verification;
use crate::backend::Backend;
use crate::outcome::{Failure, SessionEnd};
use crate::telemetry::counters::{Counters, DatagramTally};
use crate::telemetry::outages;
use crate::telemetry::record::session::{SessionRecord, SessionStart};
use crate::telemetry::refusals;
use crate::udp::drop_reason::{DropReason, DroppedRequest};
use crate::udp::endpoints::{ClientKey, DatagramOrigin, ReplyTo, SessionKey};
use crate::udp::listing::SessionGauge;
use crate::udp::lru_table::{EntryId, LruTable, TableLimits};

/// The sessions of one worker, with the counters of its datagrams.
pub(crate) struct SessionTable<R> {
    pub(super) role: R,
    pub(crate) table: LruTable<SessionKey, Session>,
    /// The session that holds a client's own address and port, through any balancer.
    pub(super) clients: HashMap<ClientKey, EntryId>,
    pub(crate) tally: DatagramTally,
    pub(super) counters: Arc<Counters>,
    gauge: Arc<SessionGauge>,
    listeners: Vec<LocalAddr>,
    /// Whether new sessions are refused, because the process is stopping or a reload has removed the listeners.
    is_draining: bool,
    /// When the timeouts are shortened to [`DRAIN_QUIET`], because a reload has removed the listeners.
    shorten_at: Option<Instant>,
    /// The data path in the kernel, if it is used.
    pub(super) kernel: Option<Arc<DataPath>>,
    pub(super) egress_cache: EgressCache,
    pub(super) verification: Verification,
}

impl<R: Role> SessionTable<R> {
    pub(crate) fn new(
        role: R,
        limits: TableLimits,
        (counters, gauge): (Arc<Counters>, Arc<SessionGauge>),
        listeners: Vec<LocalAddr>,
        kernel: Option<Arc<DataPath>>,
    ) -> Self {
        Self {
            role,
            table: LruTable::new(limits),
            clients: HashMap::new(),
            tally: DatagramTally::default(),
            counters,
            gauge,
            listeners,
            is_draining: false,
            shorten_at: None,
            kernel,
            egress_cache: EgressCache::default(),
            verification: Verification::default(),
        }
    }

    /// Finds the session of a datagram or opens one. Returns the session with the offset of the payload.
    ///
    /// Calls `flush` before another session is evicted or moved: it sends the datagrams that were received and not yet sent.
    pub(crate) fn find_or_begin(
        &mut self,
        bytes: &[u8],
        reply_to: &ReplyTo,
        now: Instant,
        poller: &AsyncEpoll,
        flush: impl FnMut(&mut Self),
    ) -> Result<(EntryId, usize), DroppedRequest> {
        let epoch = self.kernel.as_ref().map(|kernel| kernel.epoch());
        let admitted = self.role.admit(bytes, reply_to, now)?;
        let id = self
            .find_or_begin_admitted(&admitted, reply_to, now, poller, flush)
            .map_err(|reason| DroppedRequest {
                reason,
                client: admitted.header.claims.facts.claim,
            })?;
        if let Some(epoch) = epoch {
            let header = bytes.get(..admitted.payload).unwrap_or_default();
            self.note_request(id, header, reply_to, epoch);
        }
        self.table.touch(id, now, false);
        Ok((id, admitted.payload))
    }

    fn find_or_begin_admitted(
        &mut self,
        admitted: &AdmittedDatagram,
        reply_to: &ReplyTo,
        now: Instant,
        poller: &AsyncEpoll,
        mut flush: impl FnMut(&mut Self),
    ) -> Result<EntryId, DropReason> {
        let id = match self.table.find(&admitted.key) {
            Some(id) => id,
            None if self.is_draining() => return Err(DropReason::Stopping),
            None => match self.failover_candidate(admitted, now)? {
                Some(id) => {
                    flush(self);
                    self.fail_over(id, admitted, now, poller)?
                }
                None => self.begin(admitted, reply_to, now, poller, flush)?,
            },
        };
        if let Some(session) = self.table.get_mut(id) {
            if self.verification.is_due(session, now) {
                self.role.verify_source(session)?;
                session.verified_at = now;
            }
            session.reply_to = *reply_to;
            session.last_request = now;
        }
        Ok(id)
    }

    /// Whether a reply of this session still reaches its client. Marks the client's flow as answered.
    pub(crate) fn accept_reply(&mut self, id: EntryId, now: Instant) -> bool {
        match self.table.get(id) {
            Some(session) => self.role.accept_reply(&session.reply_to, &session.key, now),
            None => false,
        }
    }

    /// Counts datagrams that the kernel dropped because a receive buffer was full.
    pub(crate) fn count_lost(&mut self, datagrams: u32) {
        if datagrams > 0 {
            self.tally
                .count_dropped("receive_buffer_full", datagrams.into());
        }
    }

    /// Counts a dropped datagram and logs it, at most one a second. `origin`: the sender of a request; `None` for a reply.
    pub(crate) fn count_dropped(&mut self, dropped: &DropReason, origin: Option<DatagramOrigin>) {
        self.tally.count_dropped(dropped.reason(), 1);
        if let Some(origin) = origin {
            refusals::report_datagram(origin, dropped);
        }
        if !tracing::enabled!(tracing::Level::DEBUG) {
            return;
        }
        if let Some(suppressed) = DROP_LOG.pass() {
            tracing::debug!(
                peer = origin.map(|origin| tracing::field::display(origin.peer)),
                client = origin
                    .and_then(|origin| origin.client)
                    .map(|client| tracing::field::display(client.0)),
                reason = dropped.reason(),
                suppressed,
                "datagram dropped: {dropped}"
            );
        }
    }

    /// Counts a request that was not sent to the backend, and reports the backend as down where it is unreachable.
    pub(crate) fn count_unsent(&mut self, id: EntryId, dropped: &DropReason) {
        let session = self.table.get(id);
        if let (DropReason::Unreachable(error), Some(session)) = (dropped, session) {
            outages::report_failure(
                Backend::new(session.upstream, Transport::Udp),
                dropped.reason(),
                error.kind(),
                error,
            );
        }
        let origin = session.map(|session| DatagramOrigin {
            peer: session.reply_to.peer,
            client: session.key.client.map(ClaimedSource),
        });
        self.count_dropped(dropped, origin);
    }

    /// Notes that the backend of this session has answered: the session is evicted later than unanswered ones, and the
    /// backend is up.
    pub(crate) fn note_answered(&mut self, id: EntryId, now: Instant) {
        if outages::is_any_down()
            && let Some(session) = self.table.get(id)
        {
            outages::report_success(Backend::new(session.upstream, Transport::Udp));
        }
        self.table.touch(id, now, true);
    }

    /// Expires idle sessions and reports the counters. Called once a second. If a reload has removed the listeners, sessions
    /// expire after [`DRAIN_QUIET`]: until the last one has ended, connections can't use the descriptors that are reserved for
    /// these listeners.
    pub(crate) fn tick(&mut self, now: Instant) {
        self.role.tick(now);
        self.verification
            .verify_batch(&mut self.table, &self.role, now);
        let mut end = SessionEnd::Idle;
        if self.shorten_at.is_some_and(|at| at <= now) {
            self.table.shorten_timeouts(DRAIN_QUIET);
            end = SessionEnd::Stopped;
        }
        while let Some(id) = self.table.find_expired(now) {
            if !self.touch_if_used_by_kernel(id, now) {
                self.close(id, end);
            }
        }
        self.collect_kernel_totals();
        self.report();
    }

    /// Adds this worker's counts to those of the process.
    pub(crate) fn report(&mut self) {
        self.counters.flush_tally(&mut self.tally);
        self.gauge.set(self.table.len());
    }

    /// Drains: refuses new sessions, and evicts all flows from the kernel, so that user space sees the sessions' datagrams.
    /// `is_removed`: a reload has removed the listeners, and the process goes on.
    pub(crate) fn begin_draining(&mut self, now: Instant, is_removed: bool) {
        self.is_draining = true;
        // Not at once, because the requests that the kernel carried were not seen.
        self.shorten_at = is_removed.then_some(now + DRAIN_QUIET);
        if let Some(kernel) = &self.kernel {
            kernel.evict_all();
        }
    }

    /// Whether new sessions are refused.
    pub(crate) fn is_draining(&self) -> bool {
        self.is_draining
    }

    /// Closes all sessions.
    pub(crate) fn close_all(&mut self) {
        while let Some(id) = self.table.eviction_candidate() {
            self.close(id, SessionEnd::Stopped);
        }
        self.collect_kernel_totals();
        self.report();
    }

    /// Inserts a session into the table and registers its socket with epoll.
    pub(super) fn insert(
        &mut self,
        key: SessionKey,
        balancer: IpAddr,
        now: Instant,
        session: Session,
        poller: &AsyncEpoll,
    ) -> Result<EntryId, Failure> {
        let id = self.table.insert(key, balancer, now, session);
        if let Some(client) = ClientKey::from_session(&key) {
            let port_holder = self.clients.get(&client).copied();
            // If another session holds the client's port, this one has another port.
            if port_holder.is_none_or(|id| self.table.get(id).is_none()) {
                self.clients.insert(client, id);
            }
        }
        let registered = match self.table.get(id) {
            Some(session) => poller.add(&session.socket, id.to_u64()),
            None => Ok(()),
        };
        if let Err(error) = registered {
            // The session's replies would never be received.
            self.close(id, SessionEnd::Unwatched);
            return Err(Failure::Local(error));
        }
        Ok(id)
    }

    /// Opens a session: its socket, its log record and its entry. At a limit, evicts another session first.
    fn begin(
        &mut self,
        admitted: &AdmittedDatagram,
        reply_to: &ReplyTo,
        now: Instant,
        poller: &AsyncEpoll,
        mut flush: impl FnMut(&mut Self),
    ) -> Result<EntryId, Failure> {
        let headers = self.role.headers(admitted)?;
        let (socket, upstream) = match self.open_socket(admitted) {
            Err(Failure::Local(error))
                if error.is_exhaustion() || error.is_udp_port_exhaustion() =>
            {
                flush(self);
                self.evict_for_socket(admitted.balancer, &error, now);
                self.open_socket(admitted)?
            }
            opened => opened?,
        };
        let bound_to = self.listener_address(&admitted.key);
        let listener = reply_to.original_destination.map_or(bound_to, LocalAddr);
        let local = reply_to.local.map(|local| {
            let ip = reply_to
                .original_destination
                .map_or(local.ip, |original_destination| original_destination.ip());
            LocalAddr::canonical(SocketAddr::new(ip, listener.0.port()))
        });
        if self
            .table
            .eviction_candidate_for(admitted.balancer)
            .is_some()
        {
            flush(self);
            self.evict_for(admitted.balancer, now);
        }
        let start = SessionStart {
            listener: bound_to,
            is_redirected: reply_to.original_destination.is_some(),
            local,
            peer: reply_to.peer,
            facts: admitted.header.claims.facts,
            target: Target(upstream),
        };
        let record = SessionRecord::begin(&self.counters, start);
        let session = Session::new(
            admitted.key,
            *reply_to,
            now,
            socket,
            upstream,
            headers,
            record,
        );
        self.insert(admitted.key, admitted.balancer, now, session, poller)
    }

    /// The address of the listener of a session.
    pub(super) fn listener_address(&self, key: &SessionKey) -> LocalAddr {
        self.listeners
            .get(key.listener)
            .copied()
            .unwrap_or(LocalAddr(key.from))
    }

    /// Opens the upstream socket and returns it with the backend's address.
    fn open_socket(&self, admitted: &AdmittedDatagram) -> Result<(UdpSocket, SocketAddr), Failure> {
        let socket = self.role.open_socket(admitted)?;
        let upstream = socket
            .peer_addr()
            .call("getpeername(2)")
            .map_err(Failure::Local)?;
        udp::enable_drop_count(&socket).map_err(Failure::Local)?;
        // A backend that sends at 20 Mbit/s overruns the kernel's default buffer in 50 ms.
        let _ = udp::set_receive_buffer(&socket, REPLY_BUFFER_BYTES);
        // With UDP_GRO, where the kernel has it, replies that the backend sends with UDP_SEGMENT are received merged.
        let _ = udp::enable_gro(&socket);
        Ok((socket, upstream))
    }

    /// Closes a session after its socket was destroyed from outside.
    pub(crate) fn close_destroyed(&mut self, id: EntryId) {
        self.close(id, SessionEnd::SocketDestroyed);
    }

    /// Closes a session: reclaims it from the kernel, counts and logs it.
    pub(super) fn close(&mut self, id: EntryId, end: SessionEnd) {
        if let Some(mut session) = self.table.remove(id) {
            if let Some(client) = ClientKey::from_session(&session.key)
                && self.clients.get(&client) == Some(&id)
            {
                self.clients.remove(&client);
            }
            self.reclaim_from_kernel(&mut session);
            session.close(end);
        }
    }
}

/// Receive buffer of an upstream socket in bytes, for replies while the worker does not run: 0.4 s of 20 Mbit/s. The
/// kernel caps it at `net.core.rmem_max` and then doubles it, and takes memory only for what is queued.
const REPLY_BUFFER_BYTES: usize = 1 << 20;

/// While the process drains, a worker ends once it has received no datagram of a session for so long: a backend that has not
/// answered by then will not. A session of a removed listener ends once no datagram of its own has been received.
pub(crate) const DRAIN_QUIET: Duration = Duration::from_secs(1);

static DROP_LOG: Throttle = Throttle::every(Duration::from_secs(1));
