//! One direction of a connection: receives from the source, sends to the sink, and buffers what a short write left
//! over. While bytes are buffered, nothing is received: that is the backpressure.

use std::io::{self, ErrorKind};
use std::mem;
use std::task::{Context, Poll, ready};

use futures_util::FutureExt;
use peername_sys::event::readiness::{clear_ready, is_transient};
use peername_sys::tcp::splice::Pipe;
use peername_sys::tcp::stream::{self, Received};
use tokio::io::Interest;
use tokio::net::TcpStream;

use crate::Prefix;
use crate::method::selector::MethodSelector;
use crate::method::{Method, copy, splice};

/// One direction of a connection.
#[derive(Debug)]
pub(crate) struct Direction {
    unsent: Unsent,
    selector: MethodSelector,
    state: DirectionState,
    /// Whether the next read need not wait for an event: the source is known to be readable.
    is_ready: bool,
    /// Bytes that the sink accepted.
    moved: u64,
}

/// The state of a direction after [`Direction::pump`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DirectionState {
    /// The source may still send bytes.
    Open,
    /// The source has sent FIN; buffered bytes must still be sent.
    SourceFinished,
    /// All bytes have been sent; FIN has not been forwarded yet.
    Finished,
    /// The source was reset or timed out; everything it sent has been received.
    SourceDead,
    /// The sink was reset or closed.
    SinkDead,
}

/// Bytes received from the source that the sink has not accepted yet.
#[derive(Debug)]
enum Unsent {
    None,
    Bytes {
        bytes: Box<[u8]>,
        sent: usize,
    },
    /// In a pipe, which the direction keeps until the source runs dry.
    Piped {
        pipe: Pipe,
        len: usize,
    },
}

impl Unsent {
    /// The bytes from offset `sent` on.
    fn from_bytes(bytes: Box<[u8]>, sent: usize) -> Self {
        if sent == bytes.len() {
            Self::None
        } else {
            Self::Bytes { bytes, sent }
        }
    }
}

impl Direction {
    pub(crate) fn new(method: Method, prefix: Prefix) -> Self {
        Self {
            unsent: Unsent::from_bytes(prefix.bytes, prefix.sent),
            selector: MethodSelector::new(method),
            state: DirectionState::Open,
            is_ready: prefix.has_more,
            moved: prefix.sent as u64,
        }
    }

    pub(crate) fn state(&self) -> DirectionState {
        self.state
    }

    pub(crate) fn moved(&self) -> u64 {
        self.moved
    }

    /// Bytes that are buffered here, in memory or in a pipe.
    pub(crate) fn unsent(&self) -> u64 {
        match &self.unsent {
            Unsent::None => 0,
            Unsent::Bytes { bytes, sent } => (bytes.len() - sent) as u64,
            Unsent::Piped { len, .. } => *len as u64,
        }
    }

    /// Whether the next read goes through a pipe, if one is available.
    pub(crate) fn is_splicing(&self) -> bool {
        self.selector.is_splicing()
    }

    /// Moves what can be moved now and registers `cx` for the event it waits for. After [`MAX_ROUNDS`] it yields
    /// to the other connections of the event loop.
    pub(crate) fn pump(
        &mut self,
        source: &TcpStream,
        sink: &TcpStream,
        cx: &mut Context<'_>,
    ) -> DirectionState {
        for _ in 0..MAX_ROUNDS {
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

    /// Drains a dead source: sends on what it had sent, but no FIN, since RST follows. Ready when the sink has accepted all of
    /// it, or can't accept more.
    pub(crate) fn poll_drain(
        &mut self,
        source: &TcpStream,
        sink: &TcpStream,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        while !self.is_over() {
            if ready!(self.poll_flush(sink, cx)).is_err() {
                self.state = DirectionState::SinkDead;
            } else if self.state == DirectionState::SourceFinished {
                self.state = DirectionState::SourceDead;
            } else if let Err(state) = ready!(self.poll_receive(source, sink, cx)) {
                self.state = state;
            }
        }
        Poll::Ready(())
    }

    fn is_over(&self) -> bool {
        !matches!(
            self.state,
            DirectionState::Open | DirectionState::SourceFinished
        )
    }

    /// Sends what is buffered, then forwards the end of the source, or receives. An error is the state in which the
    /// direction ends.
    fn step(
        &mut self,
        source: &TcpStream,
        sink: &TcpStream,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), DirectionState>> {
        ready!(self.poll_flush(sink, cx)).map_err(|_| DirectionState::SinkDead)?;
        if self.state == DirectionState::SourceFinished {
            self.release_pipe();
            self.state = DirectionState::Finished;
            return Poll::Ready(Ok(()));
        }
        self.poll_receive(source, sink, cx)
    }

    /// Receives from the source once it is readable. Must be called with nothing buffered.
    fn poll_receive(
        &mut self,
        source: &TcpStream,
        sink: &TcpStream,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), DirectionState>> {
        // A failing poll means that the runtime is shutting down; the read reports the error.
        if !mem::take(&mut self.is_ready) && source.poll_read_ready(cx).is_pending() {
            self.release_pipe();
            return Poll::Pending;
        }
        Poll::Ready(if self.prepare_splice() {
            self.fill_pipe(source, sink)
        } else {
            self.copy(source, sink)
        })
    }

    /// Sends what is buffered to the sink; ready when nothing is buffered any more.
    fn poll_flush(&mut self, sink: &TcpStream, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.unsent() > 0 {
            match self.send_once(sink) {
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

    fn send_once(&mut self, sink: &TcpStream) -> io::Result<usize> {
        match &mut self.unsent {
            Unsent::None => Ok(0),
            Unsent::Bytes { bytes, sent } => {
                let n = stream::send(sink, bytes.get(*sent..).unwrap_or_default())?;
                *sent += n;
                if *sent == bytes.len() {
                    self.unsent = Unsent::None;
                }
                Ok(n)
            }
            Unsent::Piped { pipe, len } => {
                let n = pipe.drain_into(sink, *len)?;
                *len -= n;
                Ok(n)
            }
        }
    }

    /// One read into the thread's buffer and one write out of it; what a short write leaves is buffered.
    fn copy(&mut self, source: &TcpStream, sink: &TcpStream) -> Result<(), DirectionState> {
        copy::with_buffer(|buffer| {
            let received = if is_read_closed(source) {
                stream::recv_before_end(source, buffer)
            } else {
                stream::recv(source, buffer)
            };
            let n = match received {
                Ok(Received { len: 0, .. }) => {
                    self.state = DirectionState::SourceFinished;
                    return Ok(());
                }
                Ok(Received { len, more }) => {
                    if !more {
                        // The next byte, and FIN, will raise an event. Another read, which only returns EAGAIN, would cost a
                        // system call for each message.
                        clear_ready(source, Interest::READABLE);
                    }
                    len
                }
                Err(error) => return handle_recv_error(source, &error),
            };
            self.selector.record_read(n);
            let bytes = buffer.get(..n).unwrap_or_default();
            let sent = match stream::send(sink, bytes) {
                Ok(sent) => sent,
                Err(error) if is_transient(&error) => 0,
                Err(_) => {
                    self.buffer_unsent(bytes);
                    return Err(DirectionState::SinkDead);
                }
            };
            self.moved += sent as u64;
            self.buffer_unsent(bytes.get(sent..).unwrap_or_default());
            Ok(())
        })
    }

    fn buffer_unsent(&mut self, rest: &[u8]) {
        if !rest.is_empty() {
            self.unsent = Unsent::from_bytes(rest.into(), 0);
        }
    }

    /// Splices what fits from the source into the pipe. `poll_flush` empties it before the next call.
    ///
    /// splice(2) never passes the mark of urgent data: there it reports that nothing is left, or even
    /// that the stream has ended. So a read has to confirm both.
    fn fill_pipe(&mut self, source: &TcpStream, sink: &TcpStream) -> Result<(), DirectionState> {
        let Unsent::Piped { pipe, len } = &mut self.unsent else {
            return Ok(());
        };
        match pipe.fill_from(source, copy::BUFFER_SIZE) {
            Ok(n @ 1..) => {
                *len = n;
                self.selector.record_read(n);
                return Ok(());
            }
            Ok(0) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            // The kernel can't splice from this socket.
            Err(error) if error.kind() == ErrorKind::InvalidInput => self.selector.force_copy(),
            // The kernel reports a reset once, so the read below would not see it any more.
            Err(error) => return handle_recv_error(source, &error),
        }
        self.release_pipe();
        self.copy(source, sink)
    }

    /// Acquires or releases the pipe as the selector demands. Returns whether this read goes through a pipe: if
    /// none is available, bytes are copied.
    fn prepare_splice(&mut self) -> bool {
        if !self.selector.is_splicing() {
            self.release_pipe();
            return false;
        }
        if matches!(self.unsent, Unsent::None)
            && let Some(pipe) = splice::acquire()
        {
            self.unsent = Unsent::Piped { pipe, len: 0 };
        }
        matches!(self.unsent, Unsent::Piped { .. })
    }

    /// Returns the pipe to the pool, if there is one and it is empty.
    fn release_pipe(&mut self) {
        if let Unsent::Piped { len: 0, .. } = self.unsent
            && let Unsent::Piped { pipe, .. } = mem::replace(&mut self.unsent, Unsent::None)
        {
            splice::release(pipe, true);
        }
    }
}

impl Drop for Direction {
    fn drop(&mut self) {
        if let Unsent::Piped { pipe, len } = mem::replace(&mut self.unsent, Unsent::None) {
            splice::release(pipe, len == 0);
        }
    }
}

/// Whether an event has reported the source's FIN.
fn is_read_closed(source: &TcpStream) -> bool {
    let ready = source.ready(Interest::READABLE).now_or_never();
    matches!(ready, Some(Ok(ready)) if ready.is_read_closed())
}

/// Handles a failed read: EAGAIN waits for the next event, EINTR reads again, any other error means that the source is dead.
fn handle_recv_error(source: &TcpStream, error: &io::Error) -> Result<(), DirectionState> {
    match error.kind() {
        ErrorKind::WouldBlock => clear_ready(source, Interest::READABLE),
        ErrorKind::Interrupted => {}
        _ => return Err(DirectionState::SourceDead),
    }
    Ok(())
}

/// Reads of a direction before it yields to the other connections of the event loop: 1 MiB if each fills the buffer.
const MAX_ROUNDS: u32 = 16;
