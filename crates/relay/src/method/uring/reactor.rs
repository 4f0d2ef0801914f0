//! The reactor: all io_uring sessions of a thread, and the ring that receives for them.

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

use super::session::{EndedSession, SessionState, SourceEnd, is_local_error};
use crate::Pair;
use crate::stats::{RelayStats, coarse_millis};

pub(super) struct Reactor {
    receiver: MultishotReceiver,
    sessions: Slab<SessionState>,
    /// Sockets with a receive request that has ended and is to be submitted again, in this order: keys and sides.
    rearm_queue: VecDeque<(usize, usize)>,
    /// Whether a task retries the submission.
    is_retrying: bool,
}

/// Starts this thread's reactor unless that was tried before. Returns whether it runs.
pub(super) fn ensure_running() -> bool {
    REACTOR.with_borrow_mut(|slot| {
        if let ThreadReactor::Untried = slot {
            *slot = Reactor::new().map_or(ThreadReactor::Unavailable, |reactor| {
                ThreadReactor::Running(Box::new(reactor))
            });
        }
        matches!(slot, ThreadReactor::Running(_))
    })
}

/// Lends this thread's reactor, if it runs.
pub(super) fn with<T>(work: impl FnOnce(&mut Reactor) -> T) -> Option<T> {
    REACTOR.with_borrow_mut(|slot| match slot {
        ThreadReactor::Running(reactor) => Some(work(reactor)),
        ThreadReactor::Untried | ThreadReactor::Unavailable => None,
    })
}

enum ThreadReactor {
    Untried,
    Running(Box<Reactor>),
    Unavailable,
}

thread_local! {
    static REACTOR: RefCell<ThreadReactor> = const { RefCell::new(ThreadReactor::Untried) };
}

impl Reactor {
    fn new() -> Option<Self> {
        let receiver = MultishotReceiver::new().ok()?;
        tokio::spawn(run(receiver.completion_event().ok()?, StopOnDrop));
        Some(Self {
            receiver,
            sessions: Slab::new(),
            rearm_queue: VecDeque::new(),
            is_retrying: false,
        })
    }

    /// Starts a session; returns its key.
    pub(super) fn start_session(
        &mut self,
        sockets: [TcpStream; 2],
        stats: Arc<RelayStats>,
    ) -> usize {
        let key = self.sessions.insert(SessionState::new(sockets, stats));
        SIDES.into_iter().for_each(|side| self.arm(key, side));
        self.submit();
        key
    }

    /// Ready, once, when the session has ended.
    pub(super) fn poll_ended(&mut self, key: usize, cx: &Context<'_>) -> Poll<EndedSession> {
        let Some(session) = self.sessions.get_mut(key) else {
            return Poll::Ready(EndedSession::default());
        };
        if !session.has_ended() {
            session.waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(EndedSession {
            from: session
                .from
                .each_mut()
                .map(|from| std::mem::take(&mut from.rest)),
            pair: session.sockets.take().and_then(return_to_runtime),
        })
    }

    pub(super) fn last_activity(&self, key: usize) -> Option<Instant> {
        self.sessions.get(key).map(|session| session.last_activity)
    }

    /// Ends a session after its handle was dropped.
    pub(super) fn abandon(&mut self, key: usize) {
        if let Some(session) = self.sessions.get_mut(key) {
            session.is_abandoned = true;
            self.end_session(key);
            self.submit();
        }
    }

    /// Handles a batch of completions. Returns whether none are left.
    ///
    /// At most as many sockets are rearmed at a time as there are buffers: more would only fail again for lack of
    /// buffers (ENOBUFS).
    fn process_completions(&mut self) -> bool {
        let now = Instant::now();
        let coarse_now = coarse_millis();
        let mut is_all = false;
        for _ in 0..COMPLETION_BATCH {
            let Self {
                receiver, sessions, ..
            } = self;
            let next = receiver
                .next(|completion| handle_completion(sessions, completion, now, coarse_now));
            let Some((key, next)) = next else {
                is_all = self.rearm_queue.is_empty();
                break;
            };
            match next {
                Next::Continue => {}
                Next::Rearm(side) => self.rearm_queue.push_back((key, side)),
                Next::EndSession => {
                    self.end_session(key);
                    // At once, so that no more is buffered than the ring has buffers.
                    self.submit();
                }
            }
        }
        for _ in 0..BUFFER_COUNT {
            let Some((key, side)) = self.rearm_queue.pop_front() else {
                break;
            };
            self.arm(key, side);
        }
        self.submit();
        is_all
    }

    /// Requests to receive from a socket.
    fn arm(&mut self, key: usize, side: usize) {
        // The session may have ended meanwhile, and another one may have its key.
        if let Some(session) = self.sessions.get_mut(key)
            && !session.is_ending
            && !session.from[side].is_armed
            && let Some(sockets) = &session.sockets
        {
            // Both stay open until the last completion.
            self.receiver.start(sockets[side].as_fd(), token(key, side));
            session.from[side].is_armed = true;
        }
    }

    /// Ends a session: cancels requests in flight; the sockets are returned when the last one has completed.
    fn end_session(&mut self, key: usize) {
        let Some(session) = self.sessions.get_mut(key) else {
            return;
        };
        if !session.is_ending {
            session.is_ending = true;
            for side in SIDES
                .into_iter()
                .filter(|&side| session.from[side].is_armed)
            {
                self.receiver.cancel(token(key, side));
            }
        }
        if !session.has_ended() {
            return;
        }
        if let Some(waker) = session.waker.take() {
            waker.wake();
        }
        if session.is_abandoned {
            self.sessions.remove(key);
        }
    }

    /// Submits requests. Where the kernel has no memory for them, a task retries.
    fn submit(&mut self) {
        if !self.receiver.submit() && !self.is_retrying {
            self.is_retrying = true;
            tokio::spawn(async {
                while with(Self::retry_submit) == Some(false) {
                    sleep(SUBMIT_RETRY_DELAY).await;
                }
            });
        }
    }

    fn retry_submit(&mut self) -> bool {
        self.is_retrying = !self.receiver.submit();
        !self.is_retrying
    }
}

/// Handles one completion; returns the session's key and what is to be done next.
fn handle_completion(
    sessions: &mut Slab<SessionState>,
    completion: Completion<'_>,
    now: Instant,
    coarse_now: u64,
) -> (usize, Next) {
    let (key, side) = (
        (completion.token >> 1) as usize,
        (completion.token & 1) as usize,
    );
    let Some(session) = sessions.get_mut(key) else {
        return (key, Next::Continue);
    };
    session.last_activity = now;
    if completion.is_last {
        session.from[side].is_armed = false;
    }
    let end = &mut session.from[side].rest.end;
    let goes_on = match completion.kind {
        CompletionKind::Bytes(bytes) => session.forward(side, bytes, coarse_now),
        CompletionKind::NoBuffers => true,
        CompletionKind::Eof => {
            if *end == SourceEnd::Open {
                *end = SourceEnd::Finished;
            }
            false
        }
        CompletionKind::Canceled => false,
        CompletionKind::Error(error) => {
            if !is_local_error(&error) {
                *end = SourceEnd::Dead;
            }
            false
        }
    };
    let next = match (goes_on && !session.is_ending, completion.is_last) {
        (false, _) => Next::EndSession,
        (true, true) => Next::Rearm(side),
        (true, false) => Next::Continue,
    };
    (key, next)
}

/// What is to be done after a completion.
enum Next {
    /// Handle the next one.
    Continue,
    /// Receive from this side again.
    Rearm(usize),
    EndSession,
}

/// Runs the reactor of this thread, for as long as the runtime lives.
async fn run(completion_event: AsyncFd<OwnedFd>, _stop: StopOnDrop) {
    while let Ok(mut ready) = completion_event.readable().await {
        ready.clear_ready();
        while with(Reactor::process_completions) == Some(false) {
            yield_now().await;
        }
    }
}

/// Drops the thread's reactor, with its sessions, when the task that runs it is dropped.
struct StopOnDrop;

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        // Taken out of the slot first: the drops of its sessions must not find the reactor.
        let reactor = REACTOR.try_with(|slot| slot.replace(ThreadReactor::Untried));
        drop(reactor);
    }
}

/// Registers the sockets with the runtime again; resets them if that fails.
fn return_to_runtime([downstream, upstream]: [TcpStream; 2]) -> Option<Pair> {
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
/// Completions that are handled before yielding to the thread's other tasks.
const COMPLETION_BATCH: u32 = 256;
/// Pause before a submission is retried.
const SUBMIT_RETRY_DELAY: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::TcpListener;

    use peername_sys::event::wait_readable;

    use super::super::session::set_reset_on_close;
    use super::*;

    fn connected() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
        let addr = listener.local_addr().expect("its address");
        let there = TcpStream::connect(addr).expect("a connection");
        (listener.accept().expect("the connection").0, there)
    }

    /// If a reset arrives just before a send, the send reports it, and the receive in flight returns what looks like
    /// FIN.
    #[test]
    fn a_reset_that_a_send_has_reported_is_not_taken_for_eof() {
        let ((downstream, client), (upstream, _backend)) = (connected(), connected());
        set_reset_on_close(&client);
        drop(client);
        let is_there = wait_readable([downstream.as_fd()], Some(Duration::from_secs(10)));
        assert!(is_there.expect("poll"), "no reset");
        let mut sessions = Slab::new();
        let key = sessions.insert(SessionState::new([downstream, upstream], Arc::default()));
        let complete = |sessions: &mut _, side, kind| {
            let completion = Completion {
                token: token(key, side),
                kind,
                is_last: false,
            };
            handle_completion(sessions, completion, Instant::now(), 1).1
        };
        let next = complete(&mut sessions, 1, CompletionKind::Bytes(b"too late"));
        assert!(matches!(next, Next::EndSession));
        let sockets = sessions[key].sockets.as_ref().expect("both");
        let found = (&sockets[0]).read(&mut [0]);
        assert_eq!(found.expect("what looks like FIN"), 0);
        complete(&mut sessions, 0, CompletionKind::Eof);
        assert_eq!(sessions[key].from[0].rest.end, SourceEnd::Dead);
        assert_eq!(sessions[key].from[1].rest.unsent, b"too late");
    }
}
