//! Keeps connections whose header is not all there, so that accept(2) never waits for one.
//!
//! accept(2) must return a connection at once or say that there is none. So a connection with an
//! unfinished header is handed to an [`Attendant`], which waits for the rest. When it has come, the
//! connection is ready, and the program must accept once more, though nobody has connected: the
//! attendant rings the listener's *doorbell*, a connection of its own to the listener. Every way of
//! waiting notices that (accept, poll, select, epoll in all its modes, in any process), and whoever
//! accepts the bell [takes](Attendant::take) a ready connection in its place.
//!
//! How it is used, by the supervisor of system calls within its own loop:
//!
//! 1. wait until the attendant is readable ([`AsFd`]) or [`Attendant::next_deadline`] has come;
//! 2. [`Attendant::attend`]: looks after whatever is due, and names the listeners that have a
//!    connection ready since the last time, one entry a connection;
//! 3. for each of them [`Attendant::take`] and hand it over, if somebody is known to wait for it, or
//!    [`Attendant::ring`].
//!
//! A connection that could not be handed over is [given back](Attendant::give_back). A bell that went
//! unheard is rung again by [`Attendant::attend`].

mod bell;
mod channel;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use peername_identity::{Counter, Table};
use peername_sys::Result;
use peername_sys::event::epoll::{Epoll, Interest, Readiness};
use peername_sys::netlink::sock_diag;
use peername_sys::process::limits::max_open_files;
use peername_sys::tcp::{socket_info, stream};

use crate::look::{Look, look_again, refuse, report_refusal};
use bell::Bell;

pub use channel::Channel;

/// Connections that wait for their header, those that are ready to be accepted, and the bells.
#[derive(Debug)]
pub struct Attendant {
    table: Table<'static>,
    header_timeout: Duration,
    /// How many connections it may keep.
    room: usize,
    epoll: Epoll,
    next_id: u64,
    waiting: BTreeMap<u64, Waiting>,
    ready: HashMap<SocketAddr, VecDeque<Ready>>,
    bells: HashMap<u64, Bell>,
    /// Room for the largest header.
    buffer: Vec<u8>,
}

#[derive(Debug)]
struct Waiting {
    connection: OwnedFd,
    listener: SocketAddr,
    deadline: Instant,
    /// Whether anything has come.
    begun: bool,
}

#[derive(Debug)]
struct Ready {
    connection: OwnedFd,
    rung: Option<Instant>,
}

impl Attendant {
    /// One without work. `header_timeout` counts from the handshake. It may come to use two thirds of the
    /// descriptors that this process may have open now.
    ///
    /// # Errors
    ///
    /// epoll_create1(2)'s.
    pub fn new(table: Table<'static>, header_timeout: Duration) -> Result<Self> {
        let max_header = table.settings().policy().max_header;
        // One for each connection, and one for its bell; the rest is for whoever comes to take it.
        let third = usize::try_from(max_open_files() / 3).unwrap_or(usize::MAX);
        Ok(Self {
            table,
            header_timeout,
            room: MAX_WAITING.min(third),
            epoll: Epoll::new()?,
            next_id: 0,
            waiting: BTreeMap::new(),
            ready: HashMap::new(),
            bells: HashMap::new(),
            buffer: vec![0; max_header],
        })
    }

    /// Takes a connection whose header is not all there. `listener` is the listener's own address, as
    /// getsockname(2) tells it. Beyond [`MAX_WAITING`], and what there are descriptors for, it is refused.
    pub fn park(&mut self, connection: OwnedFd, listener: SocketAddr) {
        let ready: usize = self.ready.values().map(VecDeque::len).sum();
        if self.waiting.len() + ready >= self.room {
            return self.refuse(connection, Counter::NoAttendant);
        }
        let id = self.new_id();
        // What is there already is reported at once.
        if self.epoll.add(&connection, id, Interest::Readable).is_err() {
            return self.refuse(connection, Counter::NoAttendant);
        }
        // What the kernel has waited for counts; whoever is slow to answer it has half of the time all the same.
        let waited = socket_info::defer_accept_delay(&connection).min(self.header_timeout / 2);
        let waiting = Waiting {
            connection,
            listener,
            deadline: Instant::now() + self.header_timeout - waited,
            begun: false,
        };
        self.waiting.insert(id, waiting);
    }

    /// Takes a connection whose header is complete, the oldest of this listener.
    pub fn take(&mut self, listener: SocketAddr) -> Option<OwnedFd> {
        let queue = self.ready.get_mut(&listener)?;
        let ready = queue.pop_front();
        if queue.is_empty() {
            self.ready.remove(&listener);
        }
        ready.map(|ready| ready.connection)
    }

    /// Puts back what could not be handed over. It is the next to be taken, and its bell is rung.
    pub fn give_back(&mut self, connection: OwnedFd, listener: SocketAddr) {
        let ready = Ready {
            connection,
            rung: None,
        };
        self.ready.entry(listener).or_default().push_front(ready);
        self.ring(listener);
    }

    /// Makes the listener readable, for one connection that is ready. If nobody listens there any
    /// more, what was ready is refused.
    pub fn ring(&mut self, listener: SocketAddr) {
        match Bell::ring(listener, self.table.settings().bells()) {
            Ok(bell) => self.keep(bell),
            Err(error) if error.source.kind() == std::io::ErrorKind::ConnectionRefused => {
                return self.give_up(listener);
            }
            // Out of ports or descriptors, or no way to the address: tried again later.
            Err(_) => {}
        }
        let queue = self.ready.get_mut(&listener);
        let silent = queue.and_then(|queue| queue.iter_mut().find(|ready| ready.rung.is_none()));
        if let Some(ready) = silent {
            ready.rung = Some(Instant::now());
        }
    }

    /// Looks after everything that is due, without waiting. Returns the listeners of connections that
    /// have become ready, one entry a connection.
    ///
    /// # Errors
    ///
    /// epoll_wait(2)'s.
    pub fn attend(&mut self) -> Result<Vec<SocketAddr>> {
        let mut ready = Vec::new();
        let mut found = Vec::new();
        self.epoll.wait(Some(Duration::ZERO), &mut found)?;
        for event in found {
            if self.waiting.contains_key(&event.token) {
                ready.extend(self.look_at(event));
            } else {
                self.look_at_bell(event);
            }
        }
        ready.extend(self.expire());
        self.ring_again();
        Ok(ready)
    }

    /// When [`Attendant::attend`] must be called even if nothing has come.
    pub fn next_deadline(&self) -> Option<Instant> {
        let header = self.waiting.first_key_value().map(|(_, w)| w.deadline);
        let rung = self.ready.values().flatten().filter_map(|r| r.rung).min();
        let ring = rung.map(|at| at + RING_AGAIN);
        header.into_iter().chain(ring).min()
    }

    /// Frees the table's slots of sockets that are closed.
    ///
    /// Only those of the calling thread's network namespace are looked at, which must be that of the
    /// table's policy.
    pub fn sweep(&self) {
        let own = self.table.settings().policy().namespace;
        let swept = |place: &peername_identity::Place| own != 0 && place.namespace == own;
        let before: Vec<_> = self.table.places().filter(swept).collect();
        // If the kernel can't say, nothing is freed; the next time it may.
        if let Ok(live) = sock_diag::open_tcp_cookies() {
            let closed = before.iter().filter(|place| !live.contains(&place.cookie));
            closed.for_each(|place| self.table.remove(*place));
        }
        self.table.settings().swept();
    }

    fn look_at(&mut self, found: Readiness) -> Option<SocketAddr> {
        let id = found.token;
        self.make_room_for(id);
        let waiting = self.waiting.get_mut(&id)?;
        let look = look_again(self.table, waiting.connection.as_fd(), &mut self.buffer);
        let over = found.read_closed || found.hung_up;
        match look {
            Look::Unfinished(len) if !over => {
                waiting.begun = true;
                // Woken for every octet otherwise, even for those that are there already.
                let _ = stream::set_receive_low_water(&waiting.connection, len);
                None
            }
            Look::Ready(_) => self.make_ready(id),
            Look::Unfinished(_) => {
                let Waiting { connection, .. } = self.stop_waiting(id)?;
                self.refuse(connection, Counter::Closed);
                None
            }
            Look::Refused => {
                let Waiting { connection, .. } = self.stop_waiting(id)?;
                refuse(connection);
                None
            }
        }
    }

    /// Sweeps if the table is full where this connection belongs: the sweep that was asked for when it
    /// was half full may have been too late for a burst.
    fn make_room_for(&self, id: u64) {
        let connection = self.waiting.get(&id).map(|waiting| &waiting.connection);
        let cookie = connection.and_then(|connection| socket_info::cookie(connection).ok());
        if cookie.is_some_and(|cookie| self.table.is_full_near(cookie)) {
            self.sweep();
        }
    }

    fn make_ready(&mut self, id: u64) -> Option<SocketAddr> {
        let Waiting {
            connection,
            listener,
            ..
        } = self.stop_waiting(id)?;
        let ready = Ready {
            connection,
            rung: None,
        };
        self.ready.entry(listener).or_default().push_back(ready);
        Some(listener)
    }

    fn stop_waiting(&mut self, id: u64) -> Option<Waiting> {
        let waiting = self.waiting.remove(&id)?;
        // It may be open elsewhere, so closing it here would not take it out.
        let _ = self.epoll.delete(&waiting.connection);
        let _ = stream::set_receive_low_water(&waiting.connection, 1);
        Some(waiting)
    }

    /// Ends the wait of those whose time is over. Where headers are optional, a peer that has not said
    /// anything is waiting for the server to speak.
    fn expire(&mut self) -> Vec<SocketAddr> {
        let (now, mut ready) = (Instant::now(), Vec::new());
        let optional = !self.table.settings().policy().header_required;
        while let Some((&id, waiting)) = self.waiting.first_key_value() {
            if waiting.deadline > now {
                break;
            }
            if optional && !waiting.begun {
                ready.extend(self.make_ready(id));
            } else if let Some(waiting) = self.stop_waiting(id) {
                self.refuse(waiting.connection, Counter::Late);
            }
        }
        ready
    }

    fn refuse(&self, connection: OwnedFd, why: Counter) {
        report_refusal(self.table, connection.as_fd(), why);
        refuse(connection);
    }

    fn keep(&mut self, bell: Bell) {
        let id = self.new_id();
        if self.epoll.add(bell.socket(), id, bell.awaits()).is_ok() {
            self.bells.insert(id, bell);
        }
    }

    fn look_at_bell(&mut self, found: Readiness) {
        let id = found.token;
        let Some(bell) = self.bells.get_mut(&id) else {
            return;
        };
        if bell.go_on(found) {
            let (socket, awaits) = (bell.socket(), bell.awaits());
            let _ = self.epoll.modify(socket, id, awaits);
        } else {
            self.bells.remove(&id);
        }
    }

    /// For connections that nobody has come to take, though no bell is waiting to be heard.
    fn ring_again(&mut self) {
        let due = Instant::now().checked_sub(RING_AGAIN);
        let unheard: Vec<SocketAddr> = self
            .ready
            .iter_mut()
            .filter(|(listener, _)| !self.bells.values().any(|bell| bell.is_for(**listener)))
            .filter_map(|(&listener, queue)| {
                let late = queue
                    .iter_mut()
                    .find(|ready| ready.rung < due && ready.rung.is_some())?;
                late.rung = None;
                Some(listener)
            })
            .collect();
        unheard.into_iter().for_each(|listener| self.ring(listener));
        self.put_off_ringing();
    }

    /// A bell that waits in the listener's queue need not be rung again, only looked for again.
    fn put_off_ringing(&mut self) {
        let now = Instant::now();
        for ready in self.ready.values_mut().flatten() {
            if ready.rung.is_some_and(|at| at + RING_AGAIN <= now) {
                ready.rung = Some(now);
            }
        }
    }

    fn give_up(&mut self, listener: SocketAddr) {
        let queue = self.ready.remove(&listener).into_iter().flatten();
        queue.for_each(|ready| refuse(ready.connection));
    }

    fn new_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }
}

impl AsFd for Attendant {
    /// Readable when there is something to [attend](Attendant::attend) to.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

/// Connections that may wait for their header, or for the program, at the same time. Each is a descriptor and little
/// else.
pub const MAX_WAITING: usize = 8192;
/// A bell is heard as soon as the program accepts; one that was not may have been lost.
const RING_AGAIN: Duration = Duration::from_millis(200);
