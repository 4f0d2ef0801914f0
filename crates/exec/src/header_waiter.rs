//! The header waiter: keeps accepted connections with an incomplete header, so that accept(2) never waits for one.
//!
//! accept(2) must return a connection at once or report that there is none. So a connection with an incomplete header is
//! parked at the [`HeaderWaiter`], until the header is complete or its deadline has passed. Once it is complete the
//! connection is ready, and the program must call accept(2) once more, although no client has connected: the header waiter
//! opens a wake-up connection to the listener. That ends every kind of wait (accept, poll, select, epoll in all its
//! modes, in any process), and the process that accepts it [takes](HeaderWaiter::take_ready) a ready connection instead.
//!
//! The supervisor drives it within its own event loop:
//!
//! 1. wait until the header waiter is readable ([`AsFd`]) or [`HeaderWaiter::next_deadline`] has passed;
//! 2. [`HeaderWaiter::process_due`] processes events and deadlines, and returns the listeners of connections that have
//!    become ready, one entry per connection;
//! 3. for each of these listeners, if a call of accept(2) is pending there, hand it the connection of
//!    [`HeaderWaiter::take_ready`];
//! 4. then call [`HeaderWaiter::wake_listener`] for each of them, because the pending call may have failed instead of taking
//!    the connection.
//!
//! After a failed handoff the connection is [returned](HeaderWaiter::return_ready). [`HeaderWaiter::process_due`] also wakes
//! listeners again that did not react to a wake-up.

pub(crate) mod header_peek;
mod listeners;
mod port_watch;
mod ready_connection;
mod ready_connections;
pub(crate) mod request_channels;
mod sweeper;
mod wakeup_connection;
mod wakeups;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use peername_identity::{Counter, Table};
use peername_sys::Result;
use peername_sys::event::epoll::{Epoll, Interest, Readiness};
use peername_sys::ipc::foreign_fd::ForeignFd;
use peername_sys::process::limits::max_open_files;
use peername_sys::tcp::foreign_listener::ForeignListener;
use peername_sys::tcp::{socket_info, stream};
use peername_sys::throttle::Throttle;

use crate::client_judge::ClientJudge;
use header_peek::{
    Admission, AdmittedConnection, PeekOutcome, close_with_reset, peek_again, record_refusal,
};
use listeners::Listeners;
use port_watch::PortWatch;
use ready_connection::{ReadyConnection, WAKE_AGAIN_AFTER};
use sweeper::Sweeper;
use wakeup_connection::WakeupConnection;

pub(crate) use listeners::ListenerAddr;

/// The pending connections, whose header is incomplete, the ready ones, and the wake-up connections.
#[derive(Debug)]
pub(crate) struct HeaderWaiter {
    table: Table<'static>,
    header_timeout: Duration,
    judge: Option<Rc<dyn ClientJudge>>,
    /// The maximum number of pending and ready connections together.
    capacity: usize,
    epoll: Epoll,
    next_id: u64,
    pending: HashMap<u64, PendingConnection>,
    /// The pending connections by their deadline.
    deadlines: BTreeSet<(Instant, u64)>,
    /// Pending connections to check without waiting for bytes: with a judge the library also parks connections with a complete
    /// header, or without one.
    unchecked: Vec<u64>,
    ready: HashMap<ListenerAddr, VecDeque<ReadyConnection>>,
    listeners: Listeners,
    ports: PortWatch,
    sweeper: Sweeper,
    wakeups: HashMap<u64, WakeupConnection>,
    /// The throttle of the line about wake-up connections that get no answer.
    unanswered_log: Throttle,
    /// The throttle of the line about wake-up connections that the program does not get.
    missed_log: Throttle,
    /// The throttle of the line about wake-up connections that can't be opened.
    unreachable_log: Throttle,
    /// A buffer for the largest header.
    buffer: Vec<u8>,
}

#[derive(Debug)]
struct PendingConnection {
    connection: ForeignFd,
    listener: ListenerAddr,
    deadline: Instant,
    /// The low-water mark that the program has set on its listener.
    low_water: usize,
    /// The low-water mark that is set meanwhile: the bytes to wait for.
    awaited: usize,
    /// Whether a first byte has come.
    has_begun: bool,
}

impl HeaderWaiter {
    /// Creates an empty header waiter, which lets `judge` decide about clients. `header_timeout` counts from the handshake. The
    /// number of connections is limited by the descriptors that this process may have open now.
    pub(crate) fn new(
        table: Table<'static>,
        header_timeout: Duration,
        judge: Option<Rc<dyn ClientJudge>>,
    ) -> Result<Self> {
        let policy = table.settings().policy();
        // A third is for the connections, a third for their wake-up connections, and a third for handoffs. Of the last, a
        // quarter is for listeners, and a quarter for the threads of the program (`ThreadCache`).
        let third = usize::try_from(max_open_files() / 3).unwrap_or(usize::MAX);
        Ok(Self {
            table,
            header_timeout,
            judge,
            capacity: MAX_WAITING.min(third),
            epoll: Epoll::new()?,
            next_id: 0,
            pending: HashMap::new(),
            deadlines: BTreeSet::new(),
            unchecked: Vec::new(),
            ready: HashMap::new(),
            // Each connection may have a listener of its own.
            listeners: Listeners::new(policy.namespace, MAX_WAITING.min(third / 4)),
            ports: PortWatch::Waiting,
            sweeper: Sweeper::new(table),
            wakeups: HashMap::new(),
            unanswered_log: Throttle::new(),
            missed_log: Throttle::new(),
            unreachable_log: Throttle::new(),
            buffer: vec![0; policy.max_header],
        })
    }

    /// Notes that the program listens on this port, whether headers are expected there or not.
    pub(crate) fn note_port(&mut self, port: u16) {
        self.ports.note(port, self.table.settings());
    }

    /// Adds a listener of the program. Ready connections of an earlier listener at its address may be waiting for it.
    pub(crate) fn note_listener(&mut self, socket: impl AsFd, at: ListenerAddr) {
        // If there is no descriptor to watch the listener, those connections are refused.
        let _ = self.watch_listener(socket, at);
    }

    /// As [`HeaderWaiter::note_listener`], unless a listener at this address is known: a new one there is noted at its listen(2).
    pub(crate) fn note_unknown_listener(&mut self, socket: impl AsFd, at: ListenerAddr) {
        if !self.listeners.knows(at) {
            self.note_listener(socket, at);
        }
    }

    fn watch_listener(&mut self, socket: impl AsFd, at: ListenerAddr) -> Result<()> {
        self.listeners.add(socket, at, || {
            let pending = self.pending.values().map(|pending| pending.listener);
            pending.chain(self.ready.keys().copied()).collect()
        })
    }

    /// Disables the warning that the program listens on none of the ports.
    pub(crate) fn ignore_other_ports(&mut self) {
        self.ports = PortWatch::Done;
    }

    /// Parks a connection of this listener with an incomplete header. Beyond [`MAX_WAITING`], and beyond the limit of
    /// descriptors, the connection is refused.
    pub(crate) fn park(&mut self, connection: ForeignFd, listener: &ForeignListener) {
        let (pending, ready) = self.counts();
        let at = ListenerAddr::from(listener);
        if pending + ready >= self.capacity || self.watch_listener(listener, at).is_err() {
            return self.refuse(connection, Counter::WaiterUnavailable);
        }
        let low_water = stream::receive_low_water(&connection).unwrap_or(1);
        let awaited = 1;
        let _ = stream::set_receive_low_water(&connection, awaited);
        let id = self.new_id();
        // Bytes that have been received already are reported at once. Edge-triggered: a peek leaves all bytes in the queue, and
        // may see fewer than are there, as it stops at the mark of urgent data.
        let added = self.epoll.add(&connection, id, Interest::ReadableEdge);
        if added.is_err() {
            return self.refuse(connection, Counter::WaiterUnavailable);
        }
        // The time for which the kernel has deferred the connection counts, up to half of the timeout.
        let deferred = socket_info::defer_accept_delay(&connection).min(self.header_timeout / 2);
        let pending = PendingConnection {
            connection,
            listener: at,
            deadline: Instant::now() + self.header_timeout - deferred,
            low_water,
            awaited,
            has_begun: false,
        };
        self.deadlines.insert((pending.deadline, id));
        self.pending.insert(id, pending);
        if self.judge.is_some() {
            self.unchecked.push(id);
        }
    }

    /// Processes events and deadlines that are due, without waiting. Returns the listeners of connections that have become
    /// ready, one entry per connection.
    pub(crate) fn process_due(&mut self) -> Result<Vec<ListenerAddr>> {
        let mut ready = Vec::new();
        for id in std::mem::take(&mut self.unchecked) {
            ready.extend(self.check_pending(id, None));
        }
        let mut events = Vec::new();
        self.epoll.wait(Some(Duration::ZERO), &mut events)?;
        for event in events {
            if self.pending.contains_key(&event.token) {
                ready.extend(self.check_pending(event.token, Some(event)));
            } else {
                self.drive_wakeup(event);
            }
        }
        ready.extend(self.expire());
        self.wake_again();
        self.ports.warn(self.table.settings());
        self.sweeper.sweep_if_requested();
        Ok(ready)
    }

    /// The number of pending connections, and of ready ones.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let ready = self.ready.values().map(VecDeque::len).sum();
        (self.pending.len(), ready)
    }

    /// When [`HeaderWaiter::process_due`] must be called even without an event.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        if !self.unchecked.is_empty() {
            return Some(Instant::now());
        }
        let header = self.deadlines.first().map(|(deadline, _)| *deadline);
        let ready = self.ready.values().flatten();
        let first_woken = ready.filter_map(|ready| ready.woken).min();
        let wake_again = first_woken.map(|woken| woken + WAKE_AGAIN_AFTER);
        let ports = self.ports.next_deadline();
        let sweep = self.sweeper.next_deadline();
        [header, wake_again, ports, sweep]
            .into_iter()
            .flatten()
            .min()
    }

    /// Frees the table's slots of closed sockets, now or in a while, see [`Sweeper::request`].
    pub(crate) fn request_sweep(&mut self) {
        self.sweeper.request();
    }

    /// Sweeps if the table has no free slot for this connection, and has not been swept for that reason a moment ago.
    pub(crate) fn sweep_if_full(&mut self, connection: BorrowedFd<'_>) {
        self.sweeper.sweep_if_full(connection);
    }

    /// Peeks again at a pending connection. `event` is the reason; `None` for a check without one.
    fn check_pending(&mut self, id: u64, event: Option<Readiness>) -> Option<ListenerAddr> {
        let connection = self.pending.get(&id)?.connection.as_fd();
        self.sweeper.sweep_if_full(connection);
        let pending = self.pending.get_mut(&id)?;
        let outcome = peek_again(
            self.table,
            pending.connection.as_fd(),
            self.judge.as_deref(),
            &mut self.buffer,
        );
        let is_closed = event.is_some_and(|event| event.read_closed || event.hung_up);
        match outcome {
            PeekOutcome::Ready(admission) => self.make_ready(id, admission),
            PeekOutcome::Incomplete(len) if !is_closed => {
                // Judged by the bytes and not by an event, which SO_RCVLOWAT can delay.
                pending.has_begun |= len > 1;
                // Without the mark every byte would wake the loop. If `len` bytes have come since the peek, the call causes an
                // event. So it is not repeated for the same `len`: a header that never becomes complete would wake the loop for
                // ever.
                if pending.awaited != len {
                    pending.awaited = len;
                    let _ = stream::set_receive_low_water(&pending.connection, len);
                }
                None
            }
            PeekOutcome::Incomplete(_) => {
                let PendingConnection { connection, .. } = self.remove_pending(id)?;
                self.refuse(connection, Counter::Closed);
                None
            }
            PeekOutcome::Refused => {
                let PendingConnection { connection, .. } = self.remove_pending(id)?;
                close_with_reset(connection);
                None
            }
        }
    }

    fn make_ready(&mut self, id: u64, admission: Admission) -> Option<ListenerAddr> {
        let PendingConnection {
            connection,
            listener,
            ..
        } = self.remove_pending(id)?;
        let admitted = AdmittedConnection {
            connection,
            admission,
        };
        let ready = ReadyConnection::new(admitted);
        self.ready.entry(listener).or_default().push_back(ready);
        Some(listener)
    }

    fn remove_pending(&mut self, id: u64) -> Option<PendingConnection> {
        let pending = self.pending.remove(&id)?;
        self.deadlines.remove(&(pending.deadline, id));
        // The socket may be open in another process, so closing it here would not end the registration.
        let _ = self.epoll.delete(&pending.connection);
        let _ = stream::set_receive_low_water(&pending.connection, pending.low_water);
        Some(pending)
    }

    /// Expires pending connections after their deadline. Where headers are optional, a peer that has sent nothing is assumed
    /// to wait for the server to speak first, and its connection becomes ready.
    fn expire(&mut self) -> Vec<ListenerAddr> {
        let (now, mut ready) = (Instant::now(), Vec::new());
        let is_header_optional = !self.table.settings().policy().header_required;
        while let Some(&(deadline, id)) = self.deadlines.first()
            && deadline <= now
        {
            // One wait reports some of the connections only, so after a stop of this process (SIGSTOP) a header may have come
            // in time without an event that was processed.
            ready.extend(self.check_pending(id, None));
            let Some(pending) = self.pending.get(&id) else {
                continue;
            };
            if is_header_optional && !pending.has_begun {
                ready.extend(self.admit_silent(id));
            } else if let Some(pending) = self.remove_pending(id) {
                self.refuse(pending.connection, Counter::Late);
            }
        }
        ready
    }

    /// Makes a connection ready whose peer has sent nothing, if the peer, which is the client, may connect.
    fn admit_silent(&mut self, id: u64) -> Option<ListenerAddr> {
        let pending = self.pending.get(&id)?;
        match self.judge_silent(pending.connection.as_fd()) {
            Ok(admission) => self.make_ready(id, admission),
            Err(reason) => {
                let PendingConnection { connection, .. } = self.remove_pending(id)?;
                self.refuse(connection, reason);
                None
            }
        }
    }

    /// Judges a connection whose peer has sent nothing.
    ///
    /// # Errors
    ///
    /// The reason to refuse it.
    fn judge_silent(&self, connection: BorrowedFd<'_>) -> Result<Admission, Counter> {
        // A connection that was reset meanwhile has no peer any more.
        let peer = socket_info::peer_addr(connection).map_err(|_| Counter::Closed)?;
        let admission = Admission {
            peer,
            client: None,
            counter: Some(Counter::PassedThrough),
        };
        let judged = admission.judge(connection, self.judge.as_deref());
        judged.map_err(|denied| denied.reason)?;
        Ok(admission)
    }

    fn refuse(&self, connection: ForeignFd, reason: Counter) {
        record_refusal(self.table, connection.as_fd(), reason);
        close_with_reset(connection);
    }

    fn new_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }
}

impl AsFd for HeaderWaiter {
    /// Readable when [`HeaderWaiter::process_due`] has something to do.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

/// The maximum number of pending and ready connections together. Each takes a descriptor and little else.
pub(crate) const MAX_WAITING: usize = 8192;
