//! A stream that is watched on its way to hyper.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use super::field_counter::FieldCounter;
use super::{FramingError, FramingMonitor};

/// A stream with a monitor that parses its bytes while they are read.
#[derive(Debug)]
pub(crate) struct WatchedStream<T, M> {
    io: T,
    monitor: M,
}

/// What parses the bytes of a [`WatchedStream`].
pub(crate) trait Monitor {
    /// Parses more of what the client sends.
    ///
    /// # Errors
    ///
    /// The connection has to be closed: what the client sends is not valid.
    fn feed(&mut self, bytes: &[u8]) -> Result<(), FramingError>;
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

impl Monitor for SharedFraming {
    fn feed(&mut self, bytes: &[u8]) -> Result<(), FramingError> {
        let mut framing = self.framing.lock();
        let was_awaited = framing.head_since.is_some();
        let fed = framing.feed(bytes);
        let is_awaited = framing.head_since.is_some();
        drop(framing);
        // Mostly a head comes whole, and then nothing has to wake.
        if is_awaited && !was_awaited {
            self.head_begins.notify_one();
        }
        fed
    }
}

/// Counts the fields of an HTTP/2 client's header lists, and keeps the error for the server of the connection.
#[derive(Debug)]
pub(crate) struct FieldMonitor {
    counter: FieldCounter,
    error: Arc<OnceLock<FramingError>>,
}

impl FieldMonitor {
    /// A monitor, and where its error will be.
    pub(crate) fn new() -> (Self, Arc<OnceLock<FramingError>>) {
        let error = Arc::default();
        let monitor = Self {
            counter: FieldCounter::default(),
            error: Arc::clone(&error),
        };
        (monitor, error)
    }
}

impl Monitor for FieldMonitor {
    fn feed(&mut self, bytes: &[u8]) -> Result<(), FramingError> {
        self.counter
            .feed(bytes)
            .inspect_err(|error| _ = self.error.set(error))
    }
}

impl<T, M> WatchedStream<T, M> {
    pub(crate) fn new(io: T, monitor: M) -> Self {
        Self { io, monitor }
    }

    pub(crate) fn into_inner(self) -> T {
        self.io
    }
}

impl<T: AsyncRead + Unpin, M: Monitor + Unpin> AsyncRead for WatchedStream<T, M> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.io).poll_read(cx, buffer))?;
        let fresh = buffer.filled().get(before..).unwrap_or_default();
        let fed = self.monitor.feed(fresh);
        Poll::Ready(fed.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error)))
    }
}

impl<T: AsyncWrite + Unpin, M: Unpin> AsyncWrite for WatchedStream<T, M> {
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
