//! A stream that is watched on its way to hyper, and that a monitor may hold back or replace.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use super::FramingMonitor;
use crate::http::client_connection::ClientConnection;
use crate::stream::{delegate_polls, delegate_writes};

/// A stream with a [`FramingMonitor`] that parses its bytes while they are read.
#[derive(Debug)]
pub(crate) struct WatchedStream<T> {
    io: T,
    framing: SharedFraming,
    /// What the monitor passes on in place of what was read.
    replaced: Bytes,
    /// The exchanges of the client's connection before the first request here.
    exchanges_before: u64,
    /// The requests of which the responses are written.
    answered: u64,
    /// Whether the client has shut down its side while a response is awaited or written.
    is_half_closed: bool,
}

/// The monitor of one connection, shared by the reader of its stream and the service for its requests.
#[derive(Clone, Debug, Default)]
pub(crate) struct SharedFraming {
    framing: Arc<Mutex<FramingMonitor>>,
    /// `None` in the fuzz targets.
    connection: Option<Arc<ClientConnection>>,
    /// Notified when a head has begun and not ended.
    head_begins: Arc<Notify>,
}

impl SharedFraming {
    pub(crate) fn new(connection: Arc<ClientConnection>) -> Self {
        Self {
            connection: Some(connection),
            ..Self::default()
        }
    }

    /// The exchanges of the client's connection so far; `None` while one is in flight.
    fn exchanges(&self) -> Option<u64> {
        let Some(connection) = &self.connection else {
            return Some(0);
        };
        let exchanges = &connection.exchanges;
        exchanges.is_idle().then(|| exchanges.total_begun())
    }

    /// Returns once a head has been on its way for as long as `limit`.
    pub(crate) async fn wait_head_timeout(&self, limit: Duration) {
        loop {
            let head_begins = self.head_begins.notified();
            let head_since = self.lock().head_since;
            match head_since.map(|since| since + limit) {
                None => head_begins.await,
                Some(deadline) if deadline <= Instant::now() => return,
                Some(deadline) => sleep_until(deadline).await,
            }
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, FramingMonitor> {
        self.framing.lock()
    }
}

impl<T> WatchedStream<T> {
    pub(crate) fn new(io: T, framing: SharedFraming) -> Self {
        let exchanges_before = framing.exchanges().unwrap_or_default();
        Self {
            io,
            framing,
            replaced: Bytes::new(),
            exchanges_before,
            answered: 0,
            is_half_closed: false,
        }
    }

    /// The stream, and bytes that were read from it and not passed on.
    pub(crate) fn into_parts(self) -> (T, Bytes) {
        (self.io, self.replaced)
    }

    /// Hides the end of the stream from hyper while the client awaits a response, because hyper would abort the exchange. If
    /// the stream ends inside a request's body, the exchange has to be aborted.
    fn poll_eof(&mut self) -> Poll<io::Result<()>> {
        let framing = self.framing.lock();
        let awaits_response = !framing.is_in_body() && self.answered < framing.requests();
        drop(framing);
        self.is_half_closed = awaits_response && self.framing.connection.is_some();
        match &self.framing.connection {
            Some(connection) if awaits_response => {
                connection.set_half_closed();
                Poll::Pending
            }
            _ => Poll::Ready(Ok(())),
        }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for WatchedStream<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        while self.replaced.is_empty() {
            ready!(Pin::new(&mut self.io).poll_read(cx, buffer))?;
            let fresh = buffer.filled().get(before..).unwrap_or_default();
            if fresh.is_empty() {
                return self.poll_eof();
            }
            let mut framing = self.framing.lock();
            let was_awaited = framing.head_since.is_some();
            let fed = framing.feed(fresh);
            let is_awaited = framing.head_since.is_some();
            drop(framing);
            // Mostly a head comes whole, and needs no timeout.
            if is_awaited && !was_awaited {
                self.framing.head_begins.notify_one();
            }
            let passed = fed.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
            buffer.set_filled(before + passed.unchanged);
            self.replaced = passed.replaced.into();
            if passed.unchanged > 0 {
                return Poll::Ready(Ok(()));
            }
        }
        let len = self.replaced.len().min(buffer.remaining());
        buffer.put_slice(&self.replaced.split_to(len));
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for WatchedStream<T> {
    delegate_writes!(io);
    delegate_polls!(io, poll_shutdown);

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.io).poll_flush(cx))?;
        // hyper flushes once it has written all that it has.
        if let Some(exchanges) = self.framing.exchanges() {
            self.answered = exchanges - self.exchanges_before;
            if self.is_half_closed {
                // Now hyper may read the end.
                cx.waker().wake_by_ref();
            }
        }
        Poll::Ready(Ok(()))
    }
}
