//! The loop: takes what has come by the batch, and sends on what it amounts to.
//!
//! All sockets, those listened on and those of sessions, stand in one epoll instance of the worker's
//! own, which the runtime waits for. So a wake brings everything that is ready, a session costs no
//! task and no registration in the runtime, and a round ends in few system calls however many
//! sessions it served. After some rounds the worker's TCP connections have their turn.

mod replies;

use std::io;
use std::net::UdpSocket;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use peername_sys::event::async_epoll::Poller;
use peername_sys::is_destroyed;
use peername_sys::udp::{Arrived, Inbox};
use tokio::time::{MissedTickBehavior, interval, sleep_until};

use super::dropped::Dropped;
use super::outlets::Outlets;
use super::role::Role;
use super::send::{Courier, Datagram, Failed};
use super::session::{Lost, Path};
use super::sessions::Sessions;
use super::shortcut::Kernel;
use super::sockets::UdpSockets;
use super::table::{Id, Limits};
use crate::addr::{LocalAddr, PeerAddr};
use crate::config;
use crate::counters::Counters;
use crate::server::{Companion, Phases};

/// Of all limits, one worker's share.
pub(crate) fn limits(config: &config::Datagrams, workers: usize) -> Limits {
    let share = |of: usize| of.div_ceil(workers.max(1)).max(1);
    Limits {
        entries: share(config.sessions),
        per_balancer: share(config.sessions_per_balancer),
        idle: config.close_after,
        unanswered: config.close_after.min(UNANSWERED),
    }
}

/// One worker for each set of sockets.
pub(crate) fn companions<R: Role + Send + 'static>(
    sockets: UdpSockets,
    limits: Limits,
    counters: &Arc<Counters>,
    kernel: Kernel,
    role: impl Fn() -> R,
) -> Vec<Companion> {
    let companion = |sockets: Vec<UdpSocket>| -> Companion {
        let (role, counters, kernel) = (role(), Arc::clone(counters), kernel.clone());
        Box::new(move |phases| {
            Box::pin(async move {
                let poller = Poller::new().map_err(io::Error::other)?;
                let worker = Worker::new(role, limits, counters, kernel, sockets, &poller)?;
                worker.run(&poller, phases).await
            })
        })
    };
    sockets.of_workers.into_iter().map(companion).collect()
}

struct Worker<R> {
    sessions: Sessions<R>,
    listeners: Vec<Listener>,
    inbox: Inbox,
    courier: Courier,
    outlets: Outlets,
    ready: Vec<u64>,
    /// Places of the inbox that hold replies which are still to be sent.
    filled: usize,
    pieces: Vec<Piece>,
    /// When a datagram last moved, of a session's.
    moved: Instant,
}

struct Listener {
    socket: UdpSocket,
    port: u16,
    lost: Lost,
}

/// A datagram in the inbox, on its way.
#[derive(Clone, Debug)]
struct Piece {
    session: Id,
    place: usize,
    payload: Range<usize>,
}

impl<R: Role> Worker<R> {
    fn new(
        role: R,
        limits: Limits,
        counters: Arc<Counters>,
        kernel: Kernel,
        sockets: Vec<UdpSocket>,
        poller: &Poller,
    ) -> io::Result<Self> {
        let mut addrs = Vec::new();
        let mut listeners = Vec::new();
        for (number, socket) in sockets.into_iter().enumerate() {
            let addr = socket.local_addr()?;
            addrs.push(LocalAddr(addr));
            poller
                .watch(&socket, token_of_listener(number))
                .map_err(io::Error::other)?;
            listeners.push(Listener {
                socket,
                port: addr.port(),
                lost: Lost::default(),
            });
        }
        Ok(Self {
            outlets: Outlets::new(limits.idle),
            sessions: Sessions::new(role, limits, counters, addrs, kernel),
            listeners,
            inbox: Inbox::new(BATCH),
            courier: Courier::new(),
            ready: Vec::new(),
            filled: 0,
            pieces: Vec::new(),
            moved: Instant::now(),
        })
    }

    /// Serves until it must end. Once it is to begin nothing new, it ends by itself as soon as no
    /// datagram has moved for a moment: an idle session has nothing to wait for. Who may be at its end is decided behind a
    /// look at what has come, as this process may have been paused; one look, or a flood would put off all ends.
    async fn run(mut self, poller: &Poller, mut phases: Phases) -> io::Result<()> {
        let mut draining = phases.clone();
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while !(self.sessions.stopping && self.sessions.table.len() == 0) {
            let quiet_at = self.moved + QUIET;
            tokio::select! {
                () = phases.ended() => break,
                () = draining.draining(), if !self.sessions.stopping => {
                    // What has come before the word to stop did.
                    self.rounds(poller)?;
                    self.sessions.stop();
                    self.moved = Instant::now();
                }
                () = sleep_until(quiet_at.into()), if self.sessions.stopping => {
                    let now = Instant::now();
                    self.rounds(poller)?;
                    if now.saturating_duration_since(self.moved) >= QUIET {
                        break;
                    }
                }
                _ = tick.tick() => {
                    let now = Instant::now();
                    self.rounds(poller)?;
                    self.tick(now);
                }
                ready = poller.readable() => {
                    let mut ready = ready?;
                    if self.rounds(poller)? {
                        tokio::task::yield_now().await;
                    } else {
                        ready.clear_ready();
                    }
                }
            }
        }
        self.sessions.end();
        Ok(())
    }

    fn tick(&mut self, now: Instant) {
        self.sessions.tick(now);
        self.outlets.close_idle(now);
    }

    /// Serves what is ready, and returns whether anything may be left.
    fn rounds(&mut self, poller: &Poller) -> io::Result<bool> {
        for _ in 0..ROUNDS {
            if !self.round(poller)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn round(&mut self, poller: &Poller) -> io::Result<bool> {
        let now = Instant::now();
        let mut ready = std::mem::take(&mut self.ready);
        ready.clear();
        let mut more = poller.ready(&mut ready).map_err(io::Error::other)?;
        for &token in &ready {
            more |= match listener_of_token(token) {
                Some(number) => self.requests(number, now, poller)?,
                None => self.replies(Id::from_u64(token), now),
            };
        }
        self.send_replies();
        self.sessions.report();
        self.ready = ready;
        Ok(more)
    }

    /// Takes a batch of requests and sends each to its session's backend. Returns whether more may wait;
    /// an error when nothing will ever come there again.
    fn requests(&mut self, number: usize, now: Instant, poller: &Poller) -> io::Result<bool> {
        self.send_replies();
        let Some(listener) = self.listeners.get_mut(number) else {
            return Ok(false);
        };
        let came = match self.inbox.receive(&listener.socket, 0..BATCH) {
            Ok(came) => came,
            Err(error) if is_destroyed(&error) => return Err(error),
            Err(error) => return Ok(error.kind() != io::ErrorKind::WouldBlock),
        };
        let (inbox, courier, unsent) = (&self.inbox, &mut self.courier, &mut self.pieces);
        for place in 0..came {
            let Some((arrived, bytes)) = inbox.get(place) else {
                continue;
            };
            let lost = listener.lost.since(&arrived);
            self.sessions.lost(lost);
            let path = Path {
                listener: number,
                peer: PeerAddr(arrived.peer),
                local: arrived.local,
                // From its own port, the listener answers itself.
                original: arrived
                    .original
                    .filter(|original| original.port() != listener.port),
            };
            for piece in pieces(&arrived) {
                self.sessions.tally.received += 1;
                let datagram = bytes.get(piece.clone()).unwrap_or_default();
                let received = if arrived.truncated {
                    Err(Dropped::Truncated)
                } else {
                    let flush = |sessions: &mut _| send_requests(sessions, inbox, courier, unsent);
                    self.sessions.receive(datagram, &path, now, poller, flush)
                };
                match received {
                    Ok((session, payload)) => {
                        self.moved = now;
                        unsent.push(Piece {
                            session,
                            place,
                            payload: piece.start + payload..piece.end,
                        });
                    }
                    Err(dropped) => self.sessions.dropped(&dropped, Some(&path)),
                }
            }
        }
        send_requests(&mut self.sessions, inbox, courier, unsent);
        Ok(came == BATCH)
    }
}

/// Sends requests, those of one session together and in their order.
fn send_requests<R: Role>(
    sessions: &mut Sessions<R>,
    inbox: &Inbox,
    courier: &mut Courier,
    unsent: &mut Vec<Piece>,
) {
    unsent.sort_by_key(|piece| piece.session);
    for of_session in unsent.chunk_by(|a, b| a.session == b.session) {
        send_requests_of(sessions, inbox, courier, of_session);
    }
    unsent.clear();
}

fn send_requests_of<R: Role>(
    sessions: &mut Sessions<R>,
    inbox: &Inbox,
    courier: &mut Courier,
    pieces: &[Piece],
) {
    let Some(id) = pieces.first().map(|piece| piece.session) else {
        return;
    };
    let Some(session) = sessions.table.get(id) else {
        pieces
            .iter()
            .for_each(|_| sessions.dropped(&Dropped::Evicted, None));
        return;
    };
    let datagrams: Vec<_> = pieces
        .iter()
        .map(|piece| Datagram {
            header: session.request_header(),
            payload: payload(inbox, piece),
            to: None,
            from: None,
        })
        .collect();
    let failed = courier.send(&session.socket, &datagrams);
    each_sent(pieces, &failed, |piece| {
        sessions.tally.to_upstream += 1;
        if let Some(session) = sessions.table.get_mut(piece.session) {
            session.sent_upstream(piece.payload.len());
        }
    });
    for (_, dropped) in &failed {
        sessions.unsent(id, dropped);
    }
    // Such a socket may never wake us again, and the client's next datagram needs another.
    let destroyed = |(_, dropped): &(_, _)| matches!(dropped, Dropped::SocketDestroyed(_));
    if failed.iter().any(destroyed) {
        sessions.abort(id);
    }
}

fn payload<'a>(inbox: &'a Inbox, piece: &Piece) -> &'a [u8] {
    let bytes = inbox.get(piece.place).map(|(_, bytes)| bytes);
    bytes
        .and_then(|bytes| bytes.get(piece.payload.clone()))
        .unwrap_or_default()
}

/// Where the datagrams in a place begin and end.
fn pieces(arrived: &Arrived) -> impl Iterator<Item = Range<usize>> + use<> {
    let len = arrived.len;
    let size = arrived.segment.map_or(len, usize::from).max(1);
    // An empty datagram is one, too.
    (0..len.max(1))
        .step_by(size)
        .map(move |start| start..(start + size).min(len))
}

fn each_sent(pieces: &[Piece], failed: &Failed, mut note: impl FnMut(&Piece)) {
    let mut failed = failed.iter().map(|(at, _)| *at).peekable();
    for (at, piece) in pieces.iter().enumerate() {
        if failed.next_if_eq(&at).is_none() {
            note(piece);
        }
    }
}

fn token_of_listener(number: usize) -> u64 {
    u64::MAX - number as u64
}

/// Sessions' tokens begin with their slot's generation, which no slot lives to see as high as that.
fn listener_of_token(token: u64) -> Option<usize> {
    let number = u64::MAX - token;
    (number < MOST_LISTENERS).then_some(number as usize)
}

/// Datagrams taken at once. Each place is 64 KiB of address space, of which only what is used is real.
const BATCH: usize = 32;
/// Rounds before the worker's TCP connections have their turn.
const ROUNDS: usize = 8;
/// How exactly sessions end on time.
const TICK: Duration = Duration::from_secs(1);
/// While stopping: a backend that has not answered for so long has nothing more to say.
const QUIET: Duration = Duration::from_secs(1);
/// A request that nobody answers may be part of a flood.
const UNANSWERED: Duration = Duration::from_secs(30);
/// More than there can be descriptors, fewer than there are slots of the last generation.
const MOST_LISTENERS: u64 = 1 << 24;
