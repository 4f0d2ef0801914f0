//! The sessions of one worker: which one a datagram belongs to, and how they begin and end.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use peername_sys::event::async_epoll::AsyncEpoll;
use peername_sys::udp;
use peername_sys::{NameCall, SyscallError};

use crate::addr::{LocalAddr, Target};
use crate::counters::{Counters, DatagramTally};
use crate::log::Record;
use crate::outages::{self, Backend};
use crate::outcome::{Failure, Over};
use crate::refusals;
use crate::throttle::Throttle;
use crate::udp::drop_reason::Dropped;
use crate::udp::endpoints::{Key, Path};
use crate::udp::lru_table::{Id, Limits, Table};
use crate::udp::offload::Kernel;
use crate::udp::offload::egress_cache::Ways;
use crate::udp::session::Session;
use crate::udp::session::role::{Admitted, Role};

/// What a worker knows beside its buffers.
pub(crate) struct Sessions<R> {
    pub(super) role: R,
    pub(crate) table: Table<Key, Session>,
    /// The session that has a client's own address and port, through whichever balancer.
    clients: HashMap<Client, Id>,
    pub(crate) tally: DatagramTally,
    counters: Arc<Counters>,
    listeners: Vec<LocalAddr>,
    /// Whether no session may begin any more.
    pub(crate) stopping: bool,
    pub(super) kernel: Kernel,
    pub(super) ways: Ways,
}

impl<R: Role> Sessions<R> {
    pub(crate) fn new(
        role: R,
        limits: Limits,
        counters: Arc<Counters>,
        listeners: Vec<LocalAddr>,
        kernel: Kernel,
    ) -> Self {
        Self {
            role,
            table: Table::new(limits),
            clients: HashMap::new(),
            tally: DatagramTally::default(),
            counters,
            listeners,
            stopping: false,
            kernel,
            ways: Ways::default(),
        }
    }

    /// The session of a datagram that came this way, and where its payload begins. Before a session has to go for it,
    /// `flush` sends what has been received and not sent on.
    pub(crate) fn receive(
        &mut self,
        bytes: &[u8],
        path: &Path,
        now: Instant,
        poller: &AsyncEpoll,
        mut flush: impl FnMut(&mut Self),
    ) -> Result<(Id, usize), Dropped> {
        let epoch = self.kernel.as_ref().map(|kernel| kernel.epoch());
        let admitted = self.role.admit(bytes, path, now)?;
        let id = match self.table.find(&admitted.key) {
            Some(id) => id,
            None if self.stopping => return Err(Dropped::Stopping),
            None => match self.abandoned(&admitted, now)? {
                Some(id) => {
                    flush(self);
                    self.take_over(id, &admitted, now, poller)?
                }
                None => self.begin(&admitted, path, now, poller, flush)?,
            },
        };
        if let Some(session) = self.table.get_mut(id) {
            session.path = *path;
            session.heard = now;
        }
        if let Some(epoch) = epoch {
            let header = bytes.get(..admitted.payload).unwrap_or_default();
            self.observe(id, header, path, epoch);
        }
        self.table.touch(id, now, false);
        Ok((id, admitted.payload))
    }

    /// Whether the way to the session's client is still there. Takes note of the answer.
    pub(crate) fn answer(&mut self, id: Id, now: Instant) -> bool {
        match self.table.get(id) {
            Some(session) => self.role.accept_reply(&session.path, &session.key, now),
            None => false,
        }
    }

    /// Counts datagrams that the kernel threw away before we came to them.
    pub(crate) fn lost(&mut self, datagrams: u32) {
        if datagrams > 0 {
            self.tally.dropped("receive_buffer_full", datagrams.into());
        }
    }

    /// Counts a datagram that goes no further; the log has one of them a second.
    pub(crate) fn dropped(&mut self, dropped: &Dropped, path: Option<&Path>) {
        self.tally.dropped(dropped.reason(), 1);
        if let Some(path) = path {
            refusals::report_datagram(path.peer, dropped);
        }
        if !tracing::enabled!(tracing::Level::DEBUG) {
            return;
        }
        if let Some(suppressed) = LOGGED.pass() {
            tracing::debug!(
                peer = path.map(|path| tracing::field::display(path.peer)),
                reason = dropped.reason(),
                suppressed,
                "datagram dropped: {dropped}"
            );
        }
    }

    /// Counts a request that did not reach the backend of its session.
    pub(crate) fn unsent(&mut self, id: Id, dropped: &Dropped) {
        let session = self.table.get(id);
        if let (Dropped::Unreachable(error), Some(session)) = (dropped, session) {
            outages::failed(Backend::Udp(session.upstream), error.kind(), error);
        }
        let path = session.map(|session| session.path);
        self.dropped(dropped, path.as_ref());
    }

    /// The backend of this session has answered.
    pub(crate) fn answered(&mut self, id: Id, now: Instant) {
        if outages::is_any_down()
            && let Some(session) = self.table.get(id)
        {
            outages::accepted(Backend::Udp(session.upstream));
        }
        self.table.touch(id, now, true);
    }

    /// Ends what is over, and tells the counters.
    pub(crate) fn tick(&mut self, now: Instant) {
        self.role.tick(now);
        while let Some(id) = self.table.expired(now) {
            if !self.is_used_by_kernel(id, now) {
                self.finish(id, Over::Idle);
            }
        }
        self.ask_kernel();
        self.report();
    }

    /// Adds up what was counted here.
    pub(crate) fn report(&mut self) {
        self.counters.add(&mut self.tally);
    }

    /// Begins no session from now on. What is open is seen here only.
    pub(crate) fn stop(&mut self) {
        self.stopping = true;
        if let Some(kernel) = &self.kernel {
            kernel.clear();
        }
    }

    /// Ends all sessions.
    pub(crate) fn end(&mut self) {
        while let Some(id) = self.table.first() {
            self.finish(id, Over::Stopped);
        }
        self.ask_kernel();
        self.report();
    }

    /// The session that a client goes on with where it comes through another balancer and the one before has been silent: it has
    /// the client's port, which a second session could not have. `None` where there is none, and where by the rules of
    /// now the client goes elsewhere.
    fn abandoned(&mut self, admitted: &Admitted, now: Instant) -> Result<Option<Id>, Failure> {
        let client = Client::of(&admitted.key);
        let Some(&id) = client.and_then(|client| self.clients.get(&client)) else {
            return Ok(None);
        };
        let Some(&Session {
            heard, upstream, ..
        }) = self.table.get(id)
        else {
            return Ok(None);
        };
        let is_silent = now.duration_since(heard) >= FAILOVER && !self.is_used_by_kernel(id, now);
        if !is_silent || self.table.in_the_way(admitted.balancer).is_some() {
            return Ok(None);
        }
        let target = self.role.target(admitted)?;
        Ok((target == Some(upstream)).then_some(id))
    }

    fn take_over(
        &mut self,
        id: Id,
        admitted: &Admitted,
        now: Instant,
        poller: &AsyncEpoll,
    ) -> Result<Id, Failure> {
        let headers = self.role.headers(admitted)?;
        let mut session = self.table.remove(id).ok_or(Failure::NoService)?;
        self.take_back(&mut session);
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
        admitted: &Admitted,
        now: Instant,
        session: Session,
        poller: &AsyncEpoll,
    ) -> Result<Id, Failure> {
        let id = self
            .table
            .insert(admitted.key, admitted.balancer, now, session);
        if let Some(client) = Client::of(&admitted.key) {
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
            self.finish(id, Over::Unwatched);
            return Err(Failure::Local(failed));
        }
        Ok(id)
    }

    fn begin(
        &mut self,
        admitted: &Admitted,
        path: &Path,
        now: Instant,
        poller: &AsyncEpoll,
        mut flush: impl FnMut(&mut Self),
    ) -> Result<Id, Failure> {
        let headers = self.role.headers(admitted)?;
        let (socket, upstream) = match self.open(admitted) {
            Err(Failure::Local(failed)) if failed.is_exhaustion() => {
                warn_of_exhaustion(&failed);
                flush(self);
                self.give_up_one(now);
                self.open(admitted)?
            }
            opened => opened?,
        };
        let listener = self.listeners.get(path.listener).copied();
        let listener = path.original.map(LocalAddr).or(listener);
        let listener = listener.unwrap_or(LocalAddr(admitted.key.from));
        let local = path.local.map(|local| {
            let ip = path.original.map_or(local.ip, |original| original.ip());
            LocalAddr::canonical(SocketAddr::new(ip, listener.0.port()))
        });
        if self.table.in_the_way(admitted.balancer).is_some() {
            flush(self);
            self.make_room(admitted.balancer, now);
        }
        let mut record = Record::begin_session(&self.counters, listener, local, path.peer);
        record.header(admitted.header.claim, None);
        record.target(Target(upstream));
        let session = Session::new(admitted.key, *path, now, socket, upstream, headers, record);
        self.insert(admitted, now, session, poller)
    }

    fn open(&self, admitted: &Admitted) -> Result<(UdpSocket, std::net::SocketAddr), Failure> {
        let socket = self.role.open(admitted)?;
        let upstream = socket
            .peer_addr()
            .call("getpeername(2)")
            .map_err(Failure::Local)?;
        udp::enable_drop_count(&socket).map_err(Failure::Local)?;
        // A backend that sends merged datagrams is received merged, where the kernel can.
        let _ = udp::enable_gro(&socket);
        Ok((socket, upstream))
    }

    /// Ends a session whose socket was destroyed.
    pub(crate) fn abort(&mut self, id: Id) {
        self.finish(id, Over::SocketDestroyed);
    }

    fn make_room(&mut self, balancer: IpAddr, now: Instant) {
        for _ in 0..LOOKS {
            match self.table.in_the_way(balancer) {
                Some(id) if self.is_used_by_kernel(id, now) => {}
                Some(id) => return self.finish(id, Over::Evicted),
                None => return,
            }
        }
        if let Some(id) = self.table.in_the_way(balancer) {
            self.finish(id, Over::Evicted);
        }
    }

    fn give_up_one(&mut self, now: Instant) {
        for _ in 0..LOOKS {
            match self.table.first() {
                Some(id) if self.is_used_by_kernel(id, now) => {}
                Some(id) => return self.finish(id, Over::Evicted),
                None => return,
            }
        }
    }

    fn finish(&mut self, id: Id, over: Over) {
        if let Some(mut session) = self.table.remove(id) {
            if let Some(client) = Client::of(&session.key)
                && self.clients.get(&client) == Some(&id)
            {
                self.clients.remove(&client);
            }
            self.take_back(&mut session);
            session.end(over);
        }
    }
}

/// A client and where it asked, whoever brought it here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Client {
    listener: usize,
    original: Option<SocketAddr>,
    client: SocketAddr,
    destination: Option<SocketAddr>,
}

impl Client {
    /// `None` for whom no header names.
    fn of(key: &Key) -> Option<Self> {
        Some(Self {
            listener: key.listener,
            original: key.original,
            client: key.client?,
            destination: key.destination,
        })
    }
}

fn warn_of_exhaustion(failed: &SyscallError) {
    if let Some(suppressed) = EXHAUSTED.pass() {
        tracing::warn!(
            suppressed,
            "{failed}: a UDP session has to make room for a new one. Raise LimitNOFILE or \
             `ulimit -n`, or lower --max-sessions"
        );
    }
}

/// How long a balancer has brought nothing of a client before another may take the client over. Two that share its
/// datagrams go on side by side.
const FAILOVER: Duration = Duration::from_secs(3);
/// Sessions that the kernel was busy with, passed over before one of them goes all the same.
const LOOKS: usize = 16;

static LOGGED: Throttle = Throttle::new(Duration::from_secs(1));
static EXHAUSTED: Throttle = Throttle::new(Duration::from_secs(10));
