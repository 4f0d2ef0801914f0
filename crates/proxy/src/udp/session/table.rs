//! The sessions of one worker: which one a datagram belongs to, and how they begin and end.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use peername_sys::event::async_epoll::AsyncEpoll;
use peername_sys::udp;
use peername_sys::{NameCall, SyscallError};

use crate::backend::Backend;
use crate::outcome::{Failure, Over};
use crate::telemetry::counters::{Counters, DatagramTally};
use crate::telemetry::outages;
use crate::telemetry::record::Record;
use crate::telemetry::refusals;
use crate::udp::drop_reason::DropReason;
use crate::udp::endpoints::{ReplyTo, SessionKey};
use crate::udp::lru_table::{EntryId, LruTable, TableLimits};
use crate::udp::offload::KernelDataPath;
use crate::udp::offload::egress_cache::EgressCache;
use crate::udp::session::Session;
use crate::udp::session::role::{AdmittedDatagram, Role};
use peername_observe::throttle::Throttle;
use peername_server::addr::{LocalAddr, Target};
use peername_sys::netlink::Transport;

/// What a worker knows beside its buffers.
pub(crate) struct SessionTable<R> {
    pub(super) role: R,
    pub(crate) table: LruTable<SessionKey, Session>,
    /// The session that has a client's own address and port, through whichever balancer.
    clients: HashMap<ClientKey, EntryId>,
    pub(crate) tally: DatagramTally,
    counters: Arc<Counters>,
    listeners: Vec<LocalAddr>,
    /// Whether no session may begin any more.
    pub(crate) draining: bool,
    pub(super) kernel: KernelDataPath,
    pub(super) egress_cache: EgressCache,
}

impl<R: Role> SessionTable<R> {
    pub(crate) fn new(
        role: R,
        limits: TableLimits,
        counters: Arc<Counters>,
        listeners: Vec<LocalAddr>,
        kernel: KernelDataPath,
    ) -> Self {
        Self {
            role,
            table: LruTable::new(limits),
            clients: HashMap::new(),
            tally: DatagramTally::default(),
            counters,
            listeners,
            draining: false,
            kernel,
            egress_cache: EgressCache::default(),
        }
    }

    /// The session of a datagram that came this way, and where its payload begins. Before a session has to go for it,
    /// `flush` sends what has been received and not sent on.
    pub(crate) fn find_or_begin(
        &mut self,
        bytes: &[u8],
        reply_to: &ReplyTo,
        now: Instant,
        poller: &AsyncEpoll,
        mut flush: impl FnMut(&mut Self),
    ) -> Result<(EntryId, usize), DropReason> {
        let epoch = self.kernel.as_ref().map(|kernel| kernel.epoch());
        let admitted = self.role.admit(bytes, reply_to, now)?;
        let id = match self.table.find(&admitted.key) {
            Some(id) => id,
            None if self.draining => return Err(DropReason::Stopping),
            None => match self.failover_candidate(&admitted, now)? {
                Some(id) => {
                    flush(self);
                    self.fail_over(id, &admitted, now, poller)?
                }
                None => self.begin(&admitted, reply_to, now, poller, flush)?,
            },
        };
        if let Some(session) = self.table.get_mut(id) {
            session.reply_to = *reply_to;
            session.last_request = now;
        }
        if let Some(epoch) = epoch {
            let header = bytes.get(..admitted.payload).unwrap_or_default();
            self.observe(id, header, reply_to, epoch);
        }
        self.table.touch(id, now, false);
        Ok((id, admitted.payload))
    }

    /// Whether the way to the session's client is still there. Takes note of the answer.
    pub(crate) fn accept_reply(&mut self, id: EntryId, now: Instant) -> bool {
        match self.table.get(id) {
            Some(session) => self.role.accept_reply(&session.reply_to, &session.key, now),
            None => false,
        }
    }

    /// Counts datagrams that the kernel threw away before we came to them.
    pub(crate) fn count_lost(&mut self, datagrams: u32) {
        if datagrams > 0 {
            self.tally.dropped("receive_buffer_full", datagrams.into());
        }
    }

    /// Counts a datagram that goes no further; the log has one of them a second.
    pub(crate) fn count_dropped(&mut self, dropped: &DropReason, reply_to: Option<&ReplyTo>) {
        self.tally.dropped(dropped.reason(), 1);
        if let Some(reply_to) = reply_to {
            refusals::report_datagram(reply_to.peer, dropped);
        }
        if !tracing::enabled!(tracing::Level::DEBUG) {
            return;
        }
        if let Some(suppressed) = DROP_LOG.pass() {
            tracing::debug!(
                peer = reply_to.map(|reply_to| tracing::field::display(reply_to.peer)),
                reason = dropped.reason(),
                suppressed,
                "datagram dropped: {dropped}"
            );
        }
    }

    /// Counts a request that did not reach the backend of its session.
    pub(crate) fn count_unsent(&mut self, id: EntryId, dropped: &DropReason) {
        let session = self.table.get(id);
        if let (DropReason::Unreachable(error), Some(session)) = (dropped, session) {
            outages::report_failure(
                Backend::new(session.upstream, Transport::Udp),
                error.kind(),
                error,
            );
        }
        let reply_to = session.map(|session| session.reply_to);
        self.count_dropped(dropped, reply_to.as_ref());
    }

    /// The backend of this session has answered.
    pub(crate) fn note_answered(&mut self, id: EntryId, now: Instant) {
        if outages::is_any_down()
            && let Some(session) = self.table.get(id)
        {
            outages::report_success(Backend::new(session.upstream, Transport::Udp));
        }
        self.table.touch(id, now, true);
    }

    /// Ends what is over, and tells the counters.
    pub(crate) fn tick(&mut self, now: Instant) {
        self.role.tick(now);
        while let Some(id) = self.table.find_expired(now) {
            if !self.touch_if_used_by_kernel(id, now) {
                self.close(id, Over::Idle);
            }
        }
        self.collect_kernel_totals();
        self.report();
    }

    /// Adds up what was counted here.
    pub(crate) fn report(&mut self) {
        self.counters.add(&mut self.tally);
    }

    /// Begins no session from now on. What is open is seen here only.
    pub(crate) fn begin_draining(&mut self) {
        self.draining = true;
        if let Some(kernel) = &self.kernel {
            kernel.evict_all();
        }
    }

    /// Ends all sessions.
    pub(crate) fn close_all(&mut self) {
        while let Some(id) = self.table.eviction_candidate() {
            self.close(id, Over::Stopped);
        }
        self.collect_kernel_totals();
        self.report();
    }

    /// The session that a client goes on with where it comes through another balancer and the one before has been silent: it has
    /// the client's port, which a second session could not have. `None` where there is none, and where by the rules of
    /// now the client goes elsewhere.
    fn failover_candidate(
        &mut self,
        admitted: &AdmittedDatagram,
        now: Instant,
    ) -> Result<Option<EntryId>, Failure> {
        let client = ClientKey::of(&admitted.key);
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
        if !is_idle
            || self
                .table
                .eviction_candidate_for(admitted.balancer)
                .is_some()
        {
            return Ok(None);
        }
        let target = self.role.target(admitted)?;
        Ok((target == Some(upstream)).then_some(id))
    }

    fn fail_over(
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
        let id = self.insert(admitted, now, session, poller)?;
        self.table.touch(id, now, is_answered);
        Ok(id)
    }

    /// Puts a session into its place, and listens for its replies.
    fn insert(
        &mut self,
        admitted: &AdmittedDatagram,
        now: Instant,
        session: Session,
        poller: &AsyncEpoll,
    ) -> Result<EntryId, Failure> {
        let id = self
            .table
            .insert(admitted.key, admitted.balancer, now, session);
        if let Some(client) = ClientKey::of(&admitted.key) {
            let first = self.clients.get(&client).copied();
            // One that came later, while the first is there, has another port.
            if first.is_none_or(|first| self.table.get(first).is_none()) {
                self.clients.insert(client, id);
            }
        }
        let watched = match self.table.get(id) {
            Some(session) => poller.add(&session.socket, id.to_u64()),
            None => Ok(()),
        };
        if let Err(failed) = watched {
            // Nobody would hear its replies.
            self.close(id, Over::Unwatched);
            return Err(Failure::Local(failed));
        }
        Ok(id)
    }

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
            Err(Failure::Local(failed)) if failed.is_exhaustion() => {
                warn_of_exhaustion(&failed);
                flush(self);
                self.evict_one(now);
                self.open_socket(admitted)?
            }
            opened => opened?,
        };
        let listener = self.listeners.get(reply_to.listener).copied();
        let listener = reply_to.original.map(LocalAddr).or(listener);
        let listener = listener.unwrap_or(LocalAddr(admitted.key.from));
        let local = reply_to.local.map(|local| {
            let ip = reply_to.original.map_or(local.ip, |original| original.ip());
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
        let mut record = Record::begin_session(&self.counters, listener, local, reply_to.peer);
        record.set_header(admitted.header.claim, None);
        record.set_target(Target(upstream));
        let session = Session::new(
            admitted.key,
            *reply_to,
            now,
            socket,
            upstream,
            headers,
            record,
        );
        self.insert(admitted, now, session, poller)
    }

    fn open_socket(
        &self,
        admitted: &AdmittedDatagram,
    ) -> Result<(UdpSocket, std::net::SocketAddr), Failure> {
        let socket = self.role.open_socket(admitted)?;
        let upstream = socket
            .peer_addr()
            .call("getpeername(2)")
            .map_err(Failure::Local)?;
        udp::enable_drop_count(&socket).map_err(Failure::Local)?;
        // With the kernel's default, a backend that sends at 20 Mbit/s overruns it in 50 ms.
        let _ = udp::set_receive_buffer(&socket, REPLY_BUFFER);
        // A backend that sends merged datagrams is received merged, where the kernel can.
        let _ = udp::enable_gro(&socket);
        Ok((socket, upstream))
    }

    /// Ends a session whose socket was destroyed.
    pub(crate) fn close_destroyed(&mut self, id: EntryId) {
        self.close(id, Over::SocketDestroyed);
    }

    fn evict_for(&mut self, balancer: IpAddr, now: Instant) {
        for _ in 0..MAX_BUSY_SKIPS {
            match self.table.eviction_candidate_for(balancer) {
                Some(id) if self.touch_if_used_by_kernel(id, now) => {}
                Some(id) => return self.close(id, Over::Evicted),
                None => return,
            }
        }
        if let Some(id) = self.table.eviction_candidate_for(balancer) {
            self.close(id, Over::Evicted);
        }
    }

    fn evict_one(&mut self, now: Instant) {
        for _ in 0..MAX_BUSY_SKIPS {
            match self.table.eviction_candidate() {
                Some(id) if self.touch_if_used_by_kernel(id, now) => {}
                Some(id) => return self.close(id, Over::Evicted),
                None => return,
            }
        }
    }

    fn close(&mut self, id: EntryId, over: Over) {
        if let Some(mut session) = self.table.remove(id) {
            if let Some(client) = ClientKey::of(&session.key)
                && self.clients.get(&client) == Some(&id)
            {
                self.clients.remove(&client);
            }
            self.reclaim_from_kernel(&mut session);
            session.close(over);
        }
    }
}

/// A client and where it asked, whoever brought it here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct ClientKey {
    listener: usize,
    original: Option<SocketAddr>,
    client: SocketAddr,
    destination: Option<SocketAddr>,
}

impl ClientKey {
    /// `None` for whom no header names.
    fn of(key: &SessionKey) -> Option<Self> {
        Some(Self {
            listener: key.listener,
            original: key.original,
            client: key.client?,
            destination: key.destination,
        })
    }
}

fn warn_of_exhaustion(failed: &SyscallError) {
    if let Some(suppressed) = EXHAUSTION_LOG.pass() {
        tracing::warn!(
            suppressed,
            "{failed}: a UDP session has to make room for a new one. Raise LimitNOFILE or \
             `ulimit -n`, or lower --max-sessions"
        );
    }
}

/// How long a balancer has brought nothing of a client before another may take the client over. Two that share its
/// datagrams go on side by side.
const FAILOVER_AFTER: Duration = Duration::from_secs(3);
/// Bytes of replies that wait while the worker does not run, as the listener's buffer holds for requests: 0.4 s of
/// 20 Mbit/s. The kernel doubles it, caps it at `net.core.rmem_max` before, and takes memory only for what waits.
const REPLY_BUFFER: usize = 1 << 20;
/// Sessions that the kernel was busy with, passed over before one of them goes all the same.
const MAX_BUSY_SKIPS: usize = 16;

static DROP_LOG: Throttle = Throttle::new(Duration::from_secs(1));
static EXHAUSTION_LOG: Throttle = Throttle::new(Duration::from_secs(10));
