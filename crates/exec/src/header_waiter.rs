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
//! 3. for each listener [`HeaderWaiter::take_ready`] and hand the connection to a pending call, if there is one, or
//!    [`HeaderWaiter::wake_listener`].
//!
//! After a failed handoff the connection is [returned](HeaderWaiter::return_ready). [`HeaderWaiter::process_due`] wakes a
//! listener again that did not react to a wake-up.

mod listeners;
mod port_watch;
pub mod request_channels;
mod wakeup_connection;
mod wakeups;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use peername_identity::{Counter, SocketQueries as _, Table};
use peername_sys::Result;
use peername_sys::event::epoll::{Epoll, Interest, Readiness};
use peername_sys::ipc::foreign_fd::ForeignFd;
use peername_sys::process::limits::max_open_files;
use peername_sys::tcp::foreign_listener::ForeignListener;
use peername_sys::tcp::{socket_info, stream};

use crate::client_judge::{ClientJudge, ConnectionEnds};
use crate::header_peek::{PeekOutcome, peek_again, record_refusal, refuse};
use crate::sockets::ProgramSocket;
use crate::sockets::open_keys;
use listeners::{Listeners, MAX_LISTENERS};
use port_watch::PortWatch;
use wakeup_connection::WakeupConnection;

pub use listeners::ListenerAddr;

/// The pending connections (their header is incomplete), the ready ones, and the wake-up connections.
#[derive(Debug)]
pub struct HeaderWaiter {
    table: Table<'static>,
    header_timeout: Duration,
    judge: Option<Rc<dyn ClientJudge>>,
    /// How many connections it may keep, pending and ready together.
    capacity: usize,
    epoll: Epoll,
    next_id: u64,
    pending: HashMap<u64, PendingConnection>,
    /// The pending connections, the one that expires first in front.
    deadlines: BTreeSet<(Instant, u64)>,
    /// Pending connections to check without waiting for bytes: with a judge the library also parks those without a header.
    unchecked: Vec<u64>,
    ready: HashMap<ListenerAddr, VecDeque<ReadyConnection>>,
    listeners: Listeners,
    ports: PortWatch,
    wakeups: HashMap<u64, WakeupConnection>,
    /// When the log last said that a wake-up connection gets no answer.
    unanswered_logged: Option<Instant>,
    /// A buffer for the largest header.
    buffer: Vec<u8>,
}

#[derive(Debug)]
struct PendingConnection {
    connection: ForeignFd,
    listener: ListenerAddr,
    deadline: Instant,
    /// Whether a first byte has come.
    has_begun: bool,
}

#[derive(Debug)]
struct ReadyConnection {
    connection: ForeignFd,
    woken: Option<Instant>,
}

impl HeaderWaiter {
    /// Creates an empty header waiter, which lets `judge` decide about clients. `header_timeout` counts from the handshake.
    /// It uses at most two thirds of the descriptors that this process may have open now.
    pub fn new(
        table: Table<'static>,
        header_timeout: Duration,
        judge: Option<Rc<dyn ClientJudge>>,
    ) -> Result<Self> {
        let policy = table.settings().policy();
        // A third for the connections, a third for their wake-up connections, and the last third for handoffs, a quarter of
        // which is for listeners.
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
            listeners: Listeners::new(policy.namespace, MAX_LISTENERS.min(third / 4)),
            ports: PortWatch::new(),
            wakeups: HashMap::new(),
            unanswered_logged: None,
            buffer: vec![0; policy.max_header],
        })
    }

    /// Notes that the program listens on this port, which may expect headers or not.
    pub(crate) fn note_port(&mut self, port: u16) {
        self.ports.note(port, self.table.settings());
    }

    /// Adds a listener of the program, which may have ready connections of an earlier one at its address.
    pub(crate) fn note_listener(&mut self, socket: impl AsFd, at: ListenerAddr) {
        // Without a descriptor for it, those are refused.
        let _ = self.listeners.add(socket, at);
    }

    /// Does not warn if the program listens on none of the ports: a container has programs that listen on others.
    pub(crate) fn ignore_other_ports(&mut self) {
        self.ports = PortWatch::Done;
    }

    /// Parks a connection of this listener with an incomplete header. Beyond [`MAX_WAITING`], and beyond the limit of
    /// descriptors, the connection is refused.
    pub fn park(&mut self, connection: ForeignFd, listener: &ForeignListener) {
        let (pending, ready) = self.counts();
        let at = ListenerAddr::from(listener);
        if pending + ready >= self.capacity || self.listeners.add(listener, at).is_err() {
            return self.refuse(connection, Counter::WaiterUnavailable);
        }
        let id = self.new_id();
        // Bytes that are there already are reported at once.
        if self.epoll.add(&connection, id, Interest::Readable).is_err() {
            return self.refuse(connection, Counter::WaiterUnavailable);
        }
        // The time for which the kernel has deferred the connection counts, but leaves at least half of the timeout.
        let waited = socket_info::defer_accept_delay(&connection).min(self.header_timeout / 2);
        let pending = PendingConnection {
            connection,
            listener: at,
            deadline: Instant::now() + self.header_timeout - waited,
            has_begun: false,
        };
        self.deadlines.insert((pending.deadline, id));
        self.pending.insert(id, pending);
        if self.judge.is_some() {
            self.unchecked.push(id);
        }
    }

    /// Takes the oldest ready connection of this listener.
    pub fn take_ready(&mut self, listener: ListenerAddr) -> Option<ForeignFd> {
        let queue = self.ready.get_mut(&listener)?;
        let ready = queue.pop_front();
        if queue.is_empty() {
            self.ready.remove(&listener);
        }
        ready.map(|ready| ready.connection)
    }

    /// Returns a ready connection after a failed handoff. It is the next to be taken, and its listener is woken.
    pub fn return_ready(&mut self, connection: ForeignFd, listener: ListenerAddr) {
        let ready = ReadyConnection {
            connection,
            woken: None,
        };
        self.ready.entry(listener).or_default().push_front(ready);
        self.wake_listener(listener);
    }

    /// Processes events and deadlines that are due, without waiting. Returns the listeners of connections that have become
    /// ready, one entry per connection.
    pub fn process_due(&mut self) -> Result<Vec<ListenerAddr>> {
        let mut ready = Vec::new();
        for id in std::mem::take(&mut self.unchecked) {
            ready.extend(self.check_pending(id, None));
        }
        let mut found = Vec::new();
        self.epoll.wait(Some(Duration::ZERO), &mut found)?;
        for event in found {
            if self.pending.contains_key(&event.token) {
                ready.extend(self.check_pending(event.token, Some(event)));
            } else {
                self.drive_wakeup(event);
            }
        }
        ready.extend(self.expire());
        self.wake_again();
        self.ports.warn(self.table.settings());
        Ok(ready)
    }

    /// The number of pending connections, and of ready ones.
    pub fn counts(&self) -> (usize, usize) {
        let ready = self.ready.values().map(VecDeque::len).sum();
        (self.pending.len(), ready)
    }

    /// When [`HeaderWaiter::process_due`] must be called even without an event.
    pub fn next_deadline(&self) -> Option<Instant> {
        if !self.unchecked.is_empty() {
            return Some(Instant::now());
        }
        let header = self.deadlines.first().map(|(deadline, _)| *deadline);
        let woken = self.ready.values().flatten().filter_map(|r| r.woken).min();
        let wake_again = woken.map(|at| at + WAKE_AGAIN_AFTER);
        let ports = self.ports.next_deadline();
        header.into_iter().chain(wake_again).chain(ports).min()
    }

    /// Frees the table's slots of closed sockets.
    ///
    /// Only sockets of the calling thread's network namespace are checked, which must be that of the table's policy.
    pub fn sweep(&self) {
        let policy = self.table.settings().policy();
        let own = policy.namespace;
        let swept = |slot: &peername_identity::OccupiedSlot| own != 0 && slot.namespace == own;
        let mut closed: Vec<_> = self.table.occupied_slots().filter(swept).collect();
        // A list may omit a socket if another one is closed meanwhile, but not twice. If the kernel can't list the sockets,
        // nothing is freed until the next sweep.
        for _ in 0..LISTS {
            if !closed.is_empty() {
                match open_keys(policy.listing) {
                    Ok(open) => closed.retain(|slot| !open.contains(&slot.key)),
                    Err(_) => closed.clear(),
                }
            }
        }
        closed.iter().for_each(|slot| self.table.remove(*slot));
        self.table.settings().schedule_sweep();
    }

    /// Sweeps if the table has no room for this connection: the sweep that was due when half of the free slots were occupied
    /// may have been too early.
    pub(crate) fn sweep_if_full(&self, connection: BorrowedFd<'_>) {
        let settings = self.table.settings();
        // Below a quarter, it is unlikely that all slots are occupied where it may be.
        if settings.used() < self.table.slots() as u64 / 4 {
            return;
        }
        let socket = ProgramSocket(connection);
        let listing = settings.policy().listing;
        let key = listing.key(&socket, socket.is_multipath());
        if key.is_some_and(|key| self.table.needs_sweep_for(key)) {
            self.sweep();
        }
    }

    /// Peeks at a pending connection, because of an event, or without one.
    fn check_pending(&mut self, id: u64, found: Option<Readiness>) -> Option<ListenerAddr> {
        self.sweep_if_full(self.pending.get(&id)?.connection.as_fd());
        let pending = self.pending.get_mut(&id)?;
        let outcome = peek_again(
            self.table,
            pending.connection.as_fd(),
            self.judge.as_deref(),
            &mut self.buffer,
        );
        let over = found.is_some_and(|found| found.read_closed || found.hung_up);
        match outcome {
            PeekOutcome::Incomplete(len) if !over => {
                // From the bytes, not from an event: SO_RCVLOWAT can delay the event.
                pending.has_begun |= len > 1;
                // Without this limit every byte wakes the loop, even bytes that were peeked at already.
                let _ = stream::set_receive_low_water(&pending.connection, len);
                None
            }
            PeekOutcome::Ready(_) => self.make_ready(id),
            PeekOutcome::Incomplete(_) => {
                let PendingConnection { connection, .. } = self.remove_pending(id)?;
                self.refuse(connection, Counter::Closed);
                None
            }
            PeekOutcome::Refused => {
                let PendingConnection { connection, .. } = self.remove_pending(id)?;
                refuse(connection);
                None
            }
        }
    }

    fn make_ready(&mut self, id: u64) -> Option<ListenerAddr> {
        let PendingConnection {
            connection,
            listener,
            ..
        } = self.remove_pending(id)?;
        let ready = ReadyConnection {
            connection,
            woken: None,
        };
        self.ready.entry(listener).or_default().push_back(ready);
        Some(listener)
    }

    fn remove_pending(&mut self, id: u64) -> Option<PendingConnection> {
        let pending = self.pending.remove(&id)?;
        self.deadlines.remove(&(pending.deadline, id));
        // The socket may be open in another process, so closing it here would not end the registration.
        let _ = self.epoll.delete(&pending.connection);
        let _ = stream::set_receive_low_water(&pending.connection, 1);
        Some(pending)
    }

    /// Expires pending connections after their deadline. Where headers are optional, a peer that has sent nothing is assumed
    /// to wait for the server to speak first, and its connection becomes ready.
    fn expire(&mut self) -> Vec<ListenerAddr> {
        let (now, mut ready) = (Instant::now(), Vec::new());
        let optional = !self.table.settings().policy().header_required;
        while let Some(&(deadline, id)) = self.deadlines.first()
            && deadline <= now
        {
            let has_begun = self.pending.get(&id).is_some_and(|one| one.has_begun);
            if optional && !has_begun {
                ready.extend(self.admit_silent(id));
            } else if let Some(pending) = self.remove_pending(id) {
                self.refuse(pending.connection, Counter::Late);
            }
        }
        ready
    }

    /// Makes a connection ready whose peer has sent nothing: the peer is the client.
    fn admit_silent(&mut self, id: u64) -> Option<ListenerAddr> {
        let connection = &self.pending.get(&id)?.connection;
        let peer = socket_info::peer_addr(connection).ok();
        let judged = self.judge.as_deref().zip(peer);
        let ends = |peer| ConnectionEnds::of(connection.as_fd(), peer);
        let denied = judged.and_then(|(judge, peer)| judge.judge(ends(peer), None).err());
        if let Some(denied) = denied {
            let PendingConnection { connection, .. } = self.remove_pending(id)?;
            self.refuse(connection, denied.why);
            return None;
        }
        self.table.settings().count(Counter::PassedThrough);
        self.make_ready(id)
    }

    fn refuse(&self, connection: ForeignFd, why: Counter) {
        record_refusal(self.table, connection.as_fd(), why);
        refuse(connection);
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

/// Connections that may be parked or ready at the same time. Each is a descriptor and little else.
pub const MAX_WAITING: usize = 8192;
/// A program accepts a wake-up connection at once; one that was not accepted by then may have been lost.
const WAKE_AGAIN_AFTER: Duration = Duration::from_millis(200);
/// A slot is freed after so many lists of the open sockets without its socket.
const LISTS: usize = 2;
