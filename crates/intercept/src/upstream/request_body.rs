//! A request's body on its way to the origin.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use parking_lot::Mutex;
use tokio::sync::oneshot::{self, error::TryRecvError};

use crate::request::buffered_body::BufferedBody;
use crate::request::received_body::ReceivedBodyError;

/// A request's body, which is streamed and counted frame by frame, so that the origin's backpressure reaches the client.
#[derive(Debug)]
pub struct RequestBody {
    body: Option<BufferedBody>,
    progress: Arc<SendProgress>,
    /// See [`BufferedBody::rewind`].
    attempt: u32,
    /// The bytes that this attempt has sent.
    sent: u64,
    tracker: Option<Tracker>,
}

/// How far a request was sent to its origin. It is shared with the task that sends, which is dropped if the client leaves.
#[derive(Debug, Default)]
pub(crate) struct SendProgress {
    /// The bytes of the body that were sent, each counted once.
    pub(crate) bytes: AtomicU64,
    /// Whether the client has cut the body.
    pub(crate) is_cut: AtomicBool,
    /// Whether the proxy waits for the client's next byte.
    pub(crate) awaits_client: AtomicBool,
    /// The address that was tried last, with or without a response.
    pub(crate) tried: Mutex<Option<SocketAddr>>,
    /// Whether a second attempt has begun.
    pub(crate) retried: AtomicBool,
}

/// The body's side of a [`Sending`]: it learns that the lease has abandoned the body, and tells the lease when the body has ended.
#[derive(Debug)]
struct Tracker {
    abandoned: oneshot::Receiver<Infallible>,
    ended: Arc<EndNotifier>,
}

/// Notifies the lease of the end when the body and each of its frames have dropped it.
type EndNotifier = oneshot::Sender<Infallible>;

/// The bytes of a frame. h2 keeps them after the end of the body, until they fit into the origin's window.
struct FrameBytes {
    bytes: Bytes,
    _ended: Arc<EndNotifier>,
}

impl AsRef<[u8]> for FrameBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// The lease's side of a request's body that is being sent. Dropping it abandons the body.
#[derive(Debug)]
pub(super) struct Sending {
    /// Closed once the connection's driver has dropped the body and its frames.
    ended: oneshot::Receiver<Infallible>,
    /// Dropped to abandon the body.
    abandon: Option<oneshot::Sender<Infallible>>,
}

impl Tracker {
    fn new() -> (Self, Sending) {
        let (ended_sender, ended) = oneshot::channel();
        let (abandon, abandoned) = oneshot::channel();
        let tracker = Self {
            abandoned,
            ended: Arc::new(ended_sender),
        };
        let sending = Sending {
            ended,
            abandon: Some(abandon),
        };
        (tracker, sending)
    }

    fn track(&self, bytes: Bytes) -> Bytes {
        Bytes::from_owner(FrameBytes {
            bytes,
            _ended: Arc::clone(&self.ended),
        })
    }

    fn poll_abandoned(&mut self, cx: &mut Context<'_>) -> bool {
        self.abandoned.is_terminated() || Pin::new(&mut self.abandoned).poll(cx).is_ready()
    }
}

impl Sending {
    /// Whether the driver is done with the body: it has written all of it, or has given it up.
    pub(super) fn has_ended(&mut self) -> bool {
        !matches!(self.ended.try_recv(), Err(TryRecvError::Empty))
    }

    /// Waits until the driver is done with the body. Cancel-safe.
    pub(super) async fn wait_end(&mut self) {
        if !self.ended.is_terminated() {
            let _ = (&mut self.ended).await;
        }
    }

    /// Abandons the body: the driver gets an error as soon as it reads on.
    pub(super) fn abandon(&mut self) {
        self.abandon = None;
    }
}

impl RequestBody {
    pub(crate) fn new(body: Option<BufferedBody>, progress: Arc<SendProgress>) -> Self {
        Self {
            body,
            progress,
            attempt: 0,
            sent: 0,
            tracker: None,
        }
    }

    /// Tracks the body, which is about to be sent; `None` if there is none.
    pub(super) fn track(&mut self) -> Option<Sending> {
        if self.is_end_stream() {
            return None;
        }
        let (tracker, sending) = Tracker::new();
        self.tracker = Some(tracker);
        Some(sending)
    }

    /// How far the request was sent.
    pub(super) fn progress(&self) -> &Arc<SendProgress> {
        &self.progress
    }

    /// Returns the body for a retry. The bytes that are sent from now on are kept for it.
    pub(super) fn keep_for_retry(&self) -> Self {
        if let Some(body) = &self.body {
            body.keep_for_retry();
        }
        Self {
            body: self.body.clone(),
            progress: Arc::clone(&self.progress),
            attempt: self.attempt,
            sent: 0,
            tracker: None,
        }
    }

    /// Whether the client waits for the origin's 100 (Continue) before it sends the body.
    pub(super) fn awaits_continue(&self) -> bool {
        self.body
            .as_ref()
            .is_some_and(|body| body.lock().awaits_continue())
    }

    /// Returns a function that sends 100 (Continue) to the client.
    pub(super) fn continue_handle(&self) -> impl Fn() + Send + Sync + 'static {
        let body = self.body.clone();
        move || {
            if let Some(body) = &body {
                body.continue_now();
            }
        }
    }

    /// Frees the bytes that are kept for a retry.
    pub(super) fn discard_kept(&self) {
        if let Some(body) = &self.body {
            body.discard_kept();
        }
    }

    /// Begins a new attempt from the first byte of the body. Returns whether all bytes that were sent are kept.
    pub(super) fn rewind(&mut self) -> bool {
        let Some(body) = &self.body else {
            return true;
        };
        let attempt = body.rewind();
        self.attempt = attempt.unwrap_or(self.attempt);
        attempt.is_some()
    }
}

/// Why a request's body is incomplete. The error keeps the origin from taking it for a complete body.
#[derive(Debug, thiserror::Error)]
pub enum RequestBodyError {
    /// The client has not sent the whole body.
    #[error(transparent)]
    Client(#[from] ReceivedBodyError),
    /// A later attempt sends the body, or no attempt does.
    #[error("another attempt sends the body, or it is given up")]
    Superseded,
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = RequestBodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, RequestBodyError>>> {
        let this = self.get_mut();
        let Some(body) = &this.body else {
            return Poll::Ready(None);
        };
        let is_abandoned = this
            .tracker
            .as_mut()
            .is_some_and(|tracker| tracker.poll_abandoned(cx));
        let mut body = body.lock();
        if is_abandoned || body.attempt() != this.attempt {
            return Poll::Ready(Some(Err(RequestBodyError::Superseded)));
        }
        let frame = Pin::new(&mut *body).poll_frame(cx);
        drop(body);
        let progress = &this.progress;
        progress.awaits_client.store(frame.is_pending(), Relaxed);
        match &frame {
            Poll::Ready(Some(Ok(frame))) => {
                this.sent += frame.data_ref().map_or(0, Bytes::len) as u64;
                progress.bytes.fetch_max(this.sent, Relaxed);
            }
            Poll::Ready(Some(Err(_))) => progress.is_cut.store(true, Relaxed),
            Poll::Ready(None) | Poll::Pending => {}
        }
        frame
            .map_ok(|frame| match &this.tracker {
                Some(tracker) => frame.map_data(|bytes| tracker.track(bytes)),
                None => frame,
            })
            .map_err(RequestBodyError::from)
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(|body| {
            let body = body.lock();
            body.attempt() == self.attempt && body.is_end_stream()
        })
    }

    fn size_hint(&self) -> SizeHint {
        let Some(body) = &self.body else {
            return SizeHint::with_exact(0);
        };
        let body = body.lock();
        match body.attempt() == self.attempt {
            true => body.size_hint(),
            false => SizeHint::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn body_has_not_ended_before_its_frames_are_written() {
        let (tracker, mut sending) = Tracker::new();
        let frame = tracker.track(Bytes::from_static(b"held back for the origin's window"));
        drop(tracker);
        assert!(!sending.has_ended());
        drop(frame);
        assert!(sending.has_ended());
    }
}
