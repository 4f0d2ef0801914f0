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

/// A stream with a [`FramingMonitor`] that parses its bytes while they are read.
#[derive(Debug)]
pub(crate) struct WatchedStream<T> {
    io: T,
    framing: SharedFraming,
    /// What the monitor passes on in place of what was read.
    replaced: Bytes,
}

/// The monitor of one connection, shared by the reader of its stream and the service for its requests.
#[derive(Clone, Debug, Default)]
pub(crate) struct SharedFraming {
    framing: Arc<Mutex<FramingMonitor>>,
    /// Notified when a head has begun and not ended.
    head_begins: Arc<Notify>,
}

impl SharedFraming {
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
        let replaced = Bytes::new();
        Self {
            io,
            framing,
            replaced,
        }
    }

    /// The stream, and bytes that were read from it and not passed on.
    pub(crate) fn into_parts(self) -> (T, Bytes) {
        (self.io, self.replaced)
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
                return Poll::Ready(Ok(()));
            }
            let mut framing = self.framing.lock();
            let was_awaited = framing.head_since.is_some();
            let fed = framing.feed(fresh);
            let is_awaited = framing.head_since.is_some();
            drop(framing);
            // Mostly a head comes whole, and then nothing has to wake.
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
        let now = self.replaced.len().min(buffer.remaining());
        buffer.put_slice(&self.replaced.split_to(now));
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for WatchedStream<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
