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

use crate::client_judge::{ClientJudge, ConnectionEnds, DeniedClient};
use header_peek::{PeekOutcome, close_with_reset, judge_again, peek_again, record, record_refusal};
use listeners::Listeners;
use port_watch::PortWatch;
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

#[derive(Debug)]
struct ReadyConnection {
    connection: ForeignFd,
    /// When the listener was woken for this connection.
    woken: Option<Instant>,
    /// Whether a wake-up connection was accepted while this connection was the oldest of its listener.
    is_wakeup_accepted: bool,
    /// How often that was so, and no process has taken the connection.
    missed_wakeups: u32,
    /// Since when the listener can't be woken, although it listens.
    unreachable_since: Option<Instant>,
    /// Since when the listener answers no wake-up connection.
    unanswered_since: Option<Instant>,
    /// The counter of connections that the program gets this way; `None` if the connection is counted already.
    counter: Option<Counter>,
}

impl ReadyConnection {
    /// A connection for which the listener was not woken yet.
    fn new(connection: ForeignFd, counter: Option<Counter>) -> Self {
        Self {
            connection,
            woken: None,
            is_wakeup_accepted: false,
            missed_wakeups: 0,
            unreachable_since: None,
            unanswered_since: None,
            counter,
        }
    }
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

    /// Takes the oldest ready connection of this listener whose client may still connect, and refuses the older ones.
    pub(crate) fn take_ready(&mut self, listener: ListenerAddr) -> Option<ForeignFd> {
        loop {
            let ready = self.pop_ready(listener)?;
            if let Some(DeniedClient { client, reason }) = self.judge_again(&ready) {
                record(self.table, ready.connection.as_fd(), client, reason);
                close_with_reset(ready.connection);
                continue;
            }
            if let Some(counter) = ready.counter {
                self.table.settings().count(counter);
            }
            return Some(ready.connection);
        }
    }

    fn pop_ready(&mut self, listener: ListenerAddr) -> Option<ReadyConnection> {
        let queue = self.ready.get_mut(&listener)?;
        let ready = queue.pop_front();
        if queue.is_empty() {
            self.ready.remove(&listener);
        }
        ready
    }

    /// Returns the client of this connection if it may not connect any more.
    fn judge_again(&self, ready: &ReadyConnection) -> Option<DeniedClient> {
        let judge = self.judge.as_deref()?;
        let has_header = ready.counter != Some(Counter::PassedThrough);
        judge_again(self.table, ready.connection.as_fd(), judge, has_header).err()
    }

    /// Returns a ready connection after a failed handoff. It is the next to be taken, and its listener is woken.
    pub(crate) fn return_ready(&mut self, connection: ForeignFd, listener: ListenerAddr) {
        let ready = ReadyConnection::new(connection, None);
        self.ready.entry(listener).or_default().push_front(ready);
        self.wake_listener(listener);
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
            PeekOutcome::Ready { counter, .. } => self.make_ready(id, counter),
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

    fn make_ready(&mut self, id: u64, counter: Option<Counter>) -> Option<ListenerAddr> {
        let PendingConnection {
            connection,
            listener,
            ..
        } = self.remove_pending(id)?;
        let ready = ReadyConnection::new(connection, counter);
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
        let connection = &self.pending.get(&id)?.connection;
        let denial = self.judge.as_deref().and_then(|judge| {
            let peer = socket_info::peer_addr(connection).ok()?;
            let ends = ConnectionEnds::from_connection(connection.as_fd(), peer);
            judge.judge(ends, None).err()
        });
        if let Some(DeniedClient { reason, .. }) = denial {
            let PendingConnection { connection, .. } = self.remove_pending(id)?;
            self.refuse(connection, reason);
            return None;
        }
        self.make_ready(id, Some(Counter::PassedThrough))
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
/// A program accepts a wake-up connection at once. If it has not after this time, the wake-up may have been lost.
const WAKE_AGAIN_AFTER: Duration = Duration::from_millis(200);
