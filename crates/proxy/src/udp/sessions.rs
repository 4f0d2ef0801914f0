//! The sessions of one worker: which one a datagram belongs to, and how they begin and end.

use std::net::UdpSocket;
use std::sync::Arc;
use std::time::{Duration, Instant};

use peername_sys::datagram::{self, Poller};
use peername_sys::{Failed, NameCall};

use super::dropped::Dropped;
use super::role::{Admitted, Role};
use super::session::{Key, Path, Session};
use super::table::{Id, Limits, Table};
use crate::addr::{LocalAddr, Target};
use crate::counters::{Counters, DatagramTally};
use crate::log::Record;
use crate::outcome::{Failure, Over};
use crate::refusals;
use crate::throttle::Throttle;

/// What a worker knows beside its buffers.
pub(crate) struct Sessions<R> {
    role: R,
    pub(crate) table: Table<Key, Session>,
    pub(crate) tally: DatagramTally,
    counters: Arc<Counters>,
    listeners: Vec<LocalAddr>,
    /// Whether no session may begin any more.
    pub(crate) stopping: bool,
}

impl<R: Role> Sessions<R> {
    pub(crate) fn new(
        role: R,
        limits: Limits,
        counters: Arc<Counters>,
        listeners: Vec<LocalAddr>,
    ) -> Self {
        Self {
            role,
            table: Table::new(limits),
            tally: DatagramTally::default(),
            counters,
            listeners,
            stopping: false,
        }
    }

    /// The session of a datagram that came this way, and where its payload begins.
    pub(crate) fn receive(
        &mut self,
        bytes: &[u8],
        path: &Path,
        now: Instant,
        poller: &Poller,
    ) -> Result<(Id, usize), Dropped> {
        let admitted = self.role.admit(bytes, path, now)?;
        let id = match self.table.find(&admitted.key) {
            Some(id) => id,
            None if self.stopping => return Err(Dropped::Stopping),
            None => self.begin(&admitted, path, now, poller)?,
        };
        if let Some(session) = self.table.get_mut(id) {
            session.path = *path;
        }
        self.table.touch(id, now, false);
        Ok((id, admitted.payload))
    }

    /// Whether the way to the session's client is still there. Takes note of the answer.
    pub(crate) fn answer(&mut self, id: Id, now: Instant) -> bool {
        match self.table.get(id) {
            Some(session) => self.role.answer(&session.path, &session.key, now),
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
        if let (Dropped::Refused(failure), Some(path)) = (dropped, path) {
            refusals::tell("datagrams", path.peer, failure);
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

    /// Ends what is over, and tells the counters.
    pub(crate) fn tick(&mut self, now: Instant) {
        self.role.tick(now);
        while let Some(session) = self.table.expire(now) {
            session.end(Over::Idle);
        }
        self.report();
    }

    /// Adds up what was counted here.
    pub(crate) fn report(&mut self) {
        self.counters.add(&mut self.tally);
    }

    /// Ends all sessions.
    pub(crate) fn end(&mut self) {
        while let Some(session) = self.table.evict() {
            session.end(Over::Stopped);
        }
        self.report();
    }

    fn begin(
        &mut self,
        admitted: &Admitted,
        path: &Path,
        now: Instant,
        poller: &Poller,
    ) -> Result<Id, Failure> {
        let headers = self.role.headers(admitted)?;
        let (socket, upstream) = match self.open(admitted) {
            Err(Failure::Local(failed)) if failed.is_exhaustion() => {
                warn_of_exhaustion(&failed);
                self.give_up_one();
                self.open(admitted)?
            }
            opened => opened?,
        };
        let listener = self.listeners.get(path.listener).copied();
        let listener = path.original.map(LocalAddr).or(listener);
        let listener = listener.unwrap_or(LocalAddr(admitted.key.from));
        if let Some(evicted) = self.table.make_room(admitted.balancer) {
            evicted.end(Over::Evicted);
        }
        let mut record = Record::begin_session(&self.counters, listener, path.peer);
        record.header(admitted.framed.claim, None);
        record.target(Target(upstream));
        let session = Session::new(admitted.key, *path, socket, upstream, headers, record);
        let id = self
            .table
            .insert(admitted.key, admitted.balancer, now, session);
        let watched = match self.table.get(id) {
            Some(session) => poller.watch(&session.socket, id.to_u64()),
            None => Ok(()),
        };
        if let Err(failed) = watched {
            // Nobody would hear its replies.
            self.abort(id);
            return Err(Failure::Local(failed));
        }
        Ok(id)
    }

    fn open(&self, admitted: &Admitted) -> Result<(UdpSocket, std::net::SocketAddr), Failure> {
        let socket = self.role.open(admitted)?;
        let upstream = socket
            .peer_addr()
            .call("getpeername(2)")
            .map_err(Failure::Local)?;
        datagram::count_lost(&socket).map_err(Failure::Local)?;
        // A backend that sends merged datagrams is received merged, where the kernel can.
        let _ = datagram::receive_merged(&socket);
        Ok((socket, upstream))
    }

    /// Ends a session whose socket is of no use any more.
    pub(crate) fn abort(&mut self, id: Id) {
        if let Some(session) = self.table.remove(id) {
            session.end(Over::Evicted);
        }
    }

    fn give_up_one(&mut self) {
        if let Some(session) = self.table.evict() {
            session.end(Over::Evicted);
        }
    }
}

fn warn_of_exhaustion(failed: &Failed) {
    if let Some(suppressed) = EXHAUSTED.pass() {
        tracing::warn!(
            suppressed,
            "{failed}: a UDP session has to make room for a new one. Raise LimitNOFILE or \
             `ulimit -n`, or lower --max-sessions"
        );
    }
}

static LOGGED: Throttle = Throttle::new(Duration::from_secs(1));
static EXHAUSTED: Throttle = Throttle::new(Duration::from_secs(10));
