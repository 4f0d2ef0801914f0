//! All conversations of a thread, and the ring that receives for them.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use peername_sys::event::readiness::register_stream;
use peername_sys::tcp::stream;
use peername_sys::uring::{BUFFER_COUNT, Completion, CompletionKind, MultishotReceiver};
use slab::Slab;
use tokio::io::unix::AsyncFd;
use tokio::task::yield_now;
use tokio::time::{Instant, sleep};

use super::session::{Talking, is_ours};
use super::{End, Left, Talk};
use crate::Pair;

pub(super) struct Room {
    receiving: MultishotReceiver,
    talks: Slab<Talking>,
    /// Whose receiving has ended and is to begin again, in this order: keys and sides.
    waiting: VecDeque<(usize, usize)>,
    /// Whether somebody is to ask the kernel again.
    is_asked_again: bool,
}

/// Whether this thread has a room, which is made if that was not tried yet.
pub(super) fn opens() -> bool {
    ROOM.with_borrow_mut(|place| {
        if let Place::Untried = place {
            *place = Room::new().map_or(Place::Nowhere, |room| Place::Open(Box::new(room)));
        }
        matches!(place, Place::Open(_))
    })
}

/// Lends the room of this thread if it is there.
pub(super) fn with<T>(work: impl FnOnce(&mut Room) -> T) -> Option<T> {
    ROOM.with_borrow_mut(|place| match place {
        Place::Open(room) => Some(work(room)),
        Place::Untried | Place::Nowhere => None,
    })
}

enum Place {
    Untried,
    Open(Box<Room>),
    Nowhere,
}

thread_local! {
    static ROOM: RefCell<Place> = const { RefCell::new(Place::Untried) };
}

impl Room {
    fn new() -> Option<Self> {
        let receiving = MultishotReceiver::new().ok()?;
        tokio::spawn(attend(receiving.completion_event().ok()?, Closes));
        Some(Self {
            receiving,
            talks: Slab::new(),
            waiting: VecDeque::new(),
            is_asked_again: false,
        })
    }

    pub(super) fn join(&mut self, sockets: [TcpStream; 2]) -> Talk {
        let talking = Talking::new(sockets);
        let carried = Arc::clone(&talking.carried);
        let key = self.talks.insert(talking);
        SIDES.into_iter().for_each(|side| self.receive(key, side));
        self.submit();
        Talk { key, carried }
    }

    /// Ready, once, when nothing is received any more.
    pub(super) fn poll_left(&mut self, key: usize, cx: &Context<'_>) -> Poll<Left> {
        let Some(talking) = self.talks.get_mut(key) else {
            return Poll::Ready(Left::default());
        };
        if !talking.has_left() {
            talking.waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(Left {
            from: talking
                .from
                .each_mut()
                .map(|from| std::mem::take(&mut from.rest)),
            pair: talking.sockets.take().and_then(given_back),
        })
    }

    pub(super) fn alive(&self, key: usize) -> Option<Instant> {
        self.talks.get(key).map(|talking| talking.alive)
    }

    /// Nobody waits for this conversation any more.
    pub(super) fn cut(&mut self, key: usize) {
        if let Some(talking) = self.talks.get_mut(key) {
            talking.is_cut = true;
            self.leave(key);
            self.submit();
        }
    }

    /// Passes on what came; whether all of it.
    ///
    /// No more begin again at a time than there are buffers. Those of the many others that have something would only
    /// be told again that there is no room.
    fn turn(&mut self) -> bool {
        let now = Instant::now();
        let mut is_all = false;
        for _ in 0..TURN {
            let Self {
                receiving, talks, ..
            } = self;
            let Some((key, next)) = receiving.next(|arrival| pass_on(talks, arrival, now)) else {
                is_all = self.waiting.is_empty();
                break;
            };
            match next {
                Next::Arrival => {}
                Next::Begin(side) => self.waiting.push_back((key, side)),
                Next::Leave => {
                    self.leave(key);
                    // At once, so that no more has to be held than there are buffers.
                    self.submit();
                }
            }
        }
        for _ in 0..BUFFER_COUNT {
            let Some((key, side)) = self.waiting.pop_front() else {
                break;
            };
            self.receive(key, side);
        }
        self.submit();
        is_all
    }

    fn receive(&mut self, key: usize, side: usize) {
        // It may have left meanwhile, and another one have its key.
        if let Some(talking) = self.talks.get_mut(key)
            && !talking.is_leaving
            && !talking.from[side].is_received
            && let Some(sockets) = &talking.sockets
        {
            // Both stay open until the last arrival.
            self.receiving
                .start(sockets[side].as_fd(), token(key, side));
            talking.from[side].is_received = true;
        }
    }

    /// Ends the conversation: what is still received is stopped, and then the sockets are given back.
    fn leave(&mut self, key: usize) {
        let Some(talking) = self.talks.get_mut(key) else {
            return;
        };
        if !talking.is_leaving {
            talking.is_leaving = true;
            for side in SIDES
                .into_iter()
                .filter(|&side| talking.from[side].is_received)
            {
                self.receiving.cancel(token(key, side));
            }
        }
        if !talking.has_left() {
            return;
        }
        if let Some(waker) = talking.waker.take() {
            waker.wake();
        }
        if talking.is_cut {
            self.talks.remove(key);
        }
    }

    /// Where the kernel has no memory for what is asked of it, it is asked again soon.
    fn submit(&mut self) {
        if !self.receiving.submit() && !self.is_asked_again {
            self.is_asked_again = true;
            tokio::spawn(async {
                while with(Self::ask_again) == Some(false) {
                    sleep(AGAIN).await;
                }
            });
        }
    }

    fn ask_again(&mut self) -> bool {
        self.is_asked_again = !self.receiving.submit();
        !self.is_asked_again
    }
}

fn pass_on(talks: &mut Slab<Talking>, arrival: Completion<'_>, now: Instant) -> (usize, Next) {
    let (key, side) = ((arrival.token >> 1) as usize, (arrival.token & 1) as usize);
    let Some(talking) = talks.get_mut(key) else {
        return (key, Next::Arrival);
    };
    talking.alive = now;
    if arrival.is_last {
        talking.from[side].is_received = false;
    }
    let end = &mut talking.from[side].rest.end;
    let goes_on = match arrival.kind {
        CompletionKind::Bytes(bytes) => talking.pass_on(side, bytes),
        CompletionKind::NoBuffers => true,
        CompletionKind::Eof => {
            if *end == End::Open {
                *end = End::Finished;
            }
            false
        }
        CompletionKind::Canceled => false,
        CompletionKind::Error(error) => {
            if !is_ours(&error) {
                *end = End::Dead;
            }
            false
        }
    };
    let next = match (goes_on && !talking.is_leaving, arrival.is_last) {
        (false, _) => Next::Leave,
        (true, true) => Next::Begin(side),
        (true, false) => Next::Arrival,
    };
    (key, next)
}

/// What is to be done after an arrival.
enum Next {
    /// Look at the next one.
    Arrival,
    /// Receive from this side again.
    Begin(usize),
    Leave,
}

/// Passes on what comes, for as long as the runtime lives.
async fn attend(bell: AsyncFd<OwnedFd>, _closes: Closes) {
    while let Ok(mut ready) = bell.readable().await {
        ready.clear_ready();
        while with(Room::turn) == Some(false) {
            yield_now().await;
        }
    }
}

/// Nobody converses with nobody there to pass anything on.
struct Closes;

impl Drop for Closes {
    fn drop(&mut self) {
        // What is dropped with the room must not look for it.
        let room = ROOM.try_with(|place| place.replace(Place::Untried));
        drop(room);
    }
}

/// The sockets as the runtime's again; reset if it can't have them.
fn given_back([downstream, upstream]: [TcpStream; 2]) -> Option<Pair> {
    let pair = Pair {
        downstream: register_stream(downstream).ok()?,
        upstream: register_stream(upstream).ok()?,
    };
    for socket in [&pair.downstream, &pair.upstream] {
        let _ = stream::clear_reset_on_close(socket);
    }
    Some(pair)
}

fn token(key: usize, side: usize) -> u64 {
    (key << 1 | side) as u64
}

/// Downstream, upstream.
const SIDES: [usize; 2] = [0, 1];
/// Arrivals before the thread's other tasks get their turn.
const TURN: u32 = 256;
/// How soon the kernel is asked again.
const AGAIN: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::TcpListener;

    use peername_sys::event::wait_readable;

    use super::super::cut_short;
    use super::*;

    fn connected() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
        let addr = listener.local_addr().expect("its address");
        let there = TcpStream::connect(addr).expect("a connection");
        (listener.accept().expect("the connection").0, there)
    }

    /// Where the reset comes just before something is sent there, the send is told of it, and the read that was under
    /// way finds what looks like FIN.
    #[test]
    fn a_reset_that_a_send_was_told_of_is_no_end() {
        let ((downstream, client), (upstream, _backend)) = (connected(), connected());
        cut_short(&client);
        drop(client);
        let is_there = wait_readable([downstream.as_fd()], Some(Duration::from_secs(10)));
        assert!(is_there.expect("poll"), "no reset");
        let mut talks = Slab::new();
        let key = talks.insert(Talking::new([downstream, upstream]));
        let arrives = |talks: &mut _, side, kind| {
            let arrival = Completion {
                token: token(key, side),
                kind,
                is_last: false,
            };
            pass_on(talks, arrival, Instant::now()).1
        };
        let next = arrives(&mut talks, 1, CompletionKind::Bytes(b"too late"));
        assert!(matches!(next, Next::Leave));
        let sockets = talks[key].sockets.as_ref().expect("both");
        let found = (&sockets[0]).read(&mut [0]);
        assert_eq!(found.expect("what looks like FIN"), 0);
        arrives(&mut talks, 0, CompletionKind::Eof);
        assert_eq!(talks[key].from[0].rest.end, End::Dead);
        assert_eq!(talks[key].from[1].rest.held, b"too late");
    }
}
