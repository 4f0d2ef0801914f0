//! One direction of a connection: take from the source, give to the sink, hold back what the sink
//! did not take.

use std::io::{self, ErrorKind};
use std::mem;
use std::task::{Context, Poll, ready};

use futures_util::FutureExt;
use peername_sys::event::readiness::{clear_ready, is_transient};
use peername_sys::tcp::splice::Pipe;
use peername_sys::tcp::stream::{self, Received};
use tokio::io::Interest;
use tokio::net::TcpStream;

use crate::Ahead;
use crate::method::selector::Choice;
use crate::method::uring::{End, Rest};
use crate::method::{Method, copy, splice};

/// One direction.
#[derive(Debug)]
pub(crate) struct Flow {
    held: Held,
    choice: Choice,
    state: State,
    /// Whether the source is known to have something, for which no event has to be waited for.
    is_ready: bool,
    moved: u64,
}

/// Where a direction stands after a [`Flow::pump`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Bytes may still come.
    Open,
    /// The source has sent FIN; what is held must still go out.
    SourceFinished,
    /// All has been passed on but FIN.
    Finished,
    /// The source is gone (RST, time-out); everything it sent has been taken.
    SourceDead,
    /// The sink is gone.
    SinkDead,
}

/// Bytes taken from the source that the sink has not accepted yet.
#[derive(Debug)]
enum Held {
    Nothing,
    Bytes {
        bytes: Box<[u8]>,
        sent: usize,
    },
    /// The pipe stays with the direction until the source runs dry.
    Piped {
        pipe: Pipe,
        len: usize,
    },
}

impl Held {
    fn bytes(bytes: Box<[u8]>, sent: usize) -> Self {
        match bytes.len() - sent {
            0 => Self::Nothing,
            _ => Self::Bytes { bytes, sent },
        }
    }
}

impl Flow {
    pub(crate) fn new(method: Method, ahead: Ahead) -> Self {
        Self {
            held: Held::bytes(ahead.octets, ahead.sent),
            choice: Choice::new(method),
            state: State::Open,
            is_ready: ahead.is_followed,
            moved: ahead.sent as u64,
        }
    }

    pub(crate) fn state(&self) -> State {
        self.state
    }

    /// Bytes that the sink accepted.
    pub(crate) fn moved(&self) -> u64 {
        self.moved
    }

    /// Bytes that are held here.
    pub(crate) fn held(&self) -> u64 {
        match &self.held {
            Held::Nothing => 0,
            Held::Bytes { bytes, sent } => (bytes.len() - sent) as u64,
            Held::Piped { len, .. } => *len as u64,
        }
    }

    /// What speaks for a conversation; `None` while there is something else to be done than to pass on what comes.
    pub(crate) fn waits(&self) -> Option<&Choice> {
        let waits = self.state == State::Open && matches!(self.held, Held::Nothing);
        waits.then_some(&self.choice)
    }

    /// What speaks for a conversation has to come anew.
    pub(crate) fn talks_later(&mut self) {
        self.choice.forget_messages(true);
    }

    /// Goes on after a conversation that carried `moved` bytes.
    pub(crate) fn resume(&mut self, moved: u64, rest: &Rest) {
        self.moved += moved;
        self.hold(&rest.held);
        self.choice.has_talked(rest.is_more);
        if rest.end == End::Finished {
            self.state = State::SourceFinished;
        }
    }

    /// Moves what can be moved now and registers `cx` for whatever it waits for. After so many
    /// rounds it yields to the other connections of the loop.
    pub(crate) fn pump(
        &mut self,
        source: &TcpStream,
        sink: &TcpStream,
        cx: &mut Context<'_>,
    ) -> State {
        for _ in 0..ROUNDS {
            match self.step(source, sink, cx) {
                Poll::Ready(Ok(())) if self.is_over() => return self.state,
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(state)) => {
                    self.state = state;
                    return state;
                }
                Poll::Pending => return self.state,
            }
        }
        cx.waker().wake_by_ref();
        self.state
    }

    /// Passes on what a dead source had sent, but not its end: what follows is not FIN. Ready when the
    /// sink has accepted all of it, or can't.
    pub(crate) fn salvage(
        &mut self,
        source: &TcpStream,
        sink: &TcpStream,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        while matches!(self.state, State::Open | State::SourceFinished) {
            if ready!(self.give(sink, cx)).is_err() {
                self.state = State::SinkDead;
            } else if self.state == State::SourceFinished {
                self.state = State::SourceDead;
            } else if let Err(state) = ready!(self.take(source, sink, cx)) {
                self.state = state;
            }
        }
        Poll::Ready(())
    }

    fn is_over(&self) -> bool {
        !matches!(self.state, State::Open | State::SourceFinished)
    }

    fn step(
        &mut self,
        source: &TcpStream,
        sink: &TcpStream,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), State>> {
        ready!(self.give(sink, cx)).map_err(|_| State::SinkDead)?;
        if self.state == State::SourceFinished {
            self.release_pipe();
            self.state = State::Finished;
            return Poll::Ready(Ok(()));
        }
        self.take(source, sink, cx)
    }

    /// Takes from the source once it has something. Nothing is held when this is called.
    fn take(
        &mut self,
        source: &TcpStream,
        sink: &TcpStream,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), State>> {
        // A failing poll means that the runtime is shutting down; the read says what there is to say.
        if !mem::take(&mut self.is_ready) && source.poll_read_ready(cx).is_pending() {
            self.release_pipe();
            return Poll::Pending;
        }
        Poll::Ready(if self.splices() {
            self.fill_pipe(source, sink)
        } else {
            self.copy(source, sink)
        })
    }

    /// Gives what is held to the sink; ready when nothing is held any more.
    fn give(&mut self, sink: &TcpStream, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.held() > 0 {
            match self.give_once(sink) {
                Ok(sent) => self.moved += sent as u64,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    clear_ready(sink, Interest::WRITABLE);
                    ready!(sink.poll_write_ready(cx))?;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        Poll::Ready(Ok(()))
    }

    fn give_once(&mut self, sink: &TcpStream) -> io::Result<usize> {
        match &mut self.held {
            Held::Nothing => Ok(0),
            Held::Bytes { bytes, sent } => {
                let n = stream::send(sink, bytes.get(*sent..).unwrap_or_default())?;
                *sent += n;
                if *sent == bytes.len() {
                    self.held = Held::Nothing;
                }
                Ok(n)
            }
            Held::Piped { pipe, len } => {
                let n = pipe.drain_into(sink, *len)?;
                *len -= n;
                Ok(n)
            }
        }
    }

    /// One read into the thread's buffer and one write out of it; what the sink did not take is held.
    fn copy(&mut self, source: &TcpStream, sink: &TcpStream) -> Result<(), State> {
        copy::with(|buffer| {
            let received = match is_at_end(source) {
                true => stream::recv_before_end(source, buffer),
                false => stream::recv(source, buffer),
            };
            let n = match received {
                Ok(Received { len: 0, .. }) => {
                    self.state = State::SourceFinished;
                    return Ok(());
                }
                Ok(Received { len, more }) => {
                    if !more {
                        // The next byte, and FIN, will raise an event. Reading again only to be told
                        // EAGAIN would cost a system call a message.
                        clear_ready(source, Interest::READABLE);
                    }
                    len
                }
                Err(error) => return source_error(source, &error),
            };
            self.choice.saw(n);
            let bytes = buffer.get(..n).unwrap_or_default();
            let sent = match stream::send(sink, bytes) {
                Ok(sent) => sent,
                Err(error) if is_transient(&error) => 0,
                Err(_) => {
                    self.hold(bytes);
                    return Err(State::SinkDead);
                }
            };
            self.moved += sent as u64;
            self.hold(bytes.get(sent..).unwrap_or_default());
            Ok(())
        })
    }

    fn hold(&mut self, rest: &[u8]) {
        if !rest.is_empty() {
            self.held = Held::bytes(rest.into(), 0);
        }
    }

    /// Moves what fits from the source into the pipe. `give` empties it before the next call.
    ///
    /// splice(2) never passes the mark of urgent data: there it claims that nothing is left or even
    /// that the stream has ended. So only a read is believed.
    fn fill_pipe(&mut self, source: &TcpStream, sink: &TcpStream) -> Result<(), State> {
        let Held::Piped { pipe, len } = &mut self.held else {
            return Ok(());
        };
        match pipe.fill_from(source, copy::SIZE) {
            Ok(n @ 1..) => {
                *len = n;
                self.choice.saw(n);
                return Ok(());
            }
            Err(error) if error.kind() == ErrorKind::InvalidInput => {
                // The kernel can't splice from this socket.
                self.choice.copy_from_now_on();
            }
            Ok(0) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            // The kernel tells of a reset once: it is not there any more for a read.
            Err(error) => return source_error(source, &error),
        }
        self.release_pipe();
        self.copy(source, sink)
    }

    /// Whether this read goes through a pipe. The pipe comes and goes with the need for it; without
    /// one to be had, the bytes are copied.
    fn splices(&mut self) -> bool {
        if !self.choice.splices() {
            self.release_pipe();
            return false;
        }
        if matches!(self.held, Held::Nothing)
            && let Some(pipe) = splice::borrow()
        {
            self.held = Held::Piped { pipe, len: 0 };
        }
        matches!(self.held, Held::Piped { .. })
    }

    fn release_pipe(&mut self) {
        if let Held::Piped { len: 0, .. } = self.held
            && let Held::Piped { pipe, .. } = mem::replace(&mut self.held, Held::Nothing)
        {
            splice::give_back(pipe, true);
        }
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        if let Held::Piped { pipe, len } = mem::replace(&mut self.held, Held::Nothing) {
            splice::give_back(pipe, len == 0);
        }
    }
}

/// Whether an event has told that the source's FIN is there.
fn is_at_end(source: &TcpStream) -> bool {
    let ready = source.ready(Interest::READABLE).now_or_never();
    matches!(ready, Some(Ok(ready)) if ready.is_read_closed())
}

fn source_error(source: &TcpStream, error: &io::Error) -> Result<(), State> {
    match error.kind() {
        ErrorKind::WouldBlock => clear_ready(source, Interest::READABLE),
        ErrorKind::Interrupted => {}
        _ => return Err(State::SourceDead),
    }
    Ok(())
}

/// Reads of a direction before the other connections of the loop get their turn: 1 MiB when full.
const ROUNDS: u32 = 16;
