//! A request's body on its way to the origin.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};

use crate::audit::SendProgress;
use crate::request::buffered_body::BufferedBody;

/// A request's body, which is streamed and counted frame by frame, so that the origin's backpressure reaches the client.
#[derive(Debug)]
pub struct RequestBody {
    body: Option<BufferedBody>,
    progress: Arc<SendProgress>,
    /// See [`BufferedBody::rewind`].
    attempt: u32,
    /// The bytes that this attempt has sent.
    sent: u64,
}

impl RequestBody {
    pub(crate) fn new(body: Option<BufferedBody>, progress: Arc<SendProgress>) -> Self {
        Self {
            body,
            progress,
            attempt: 0,
            sent: 0,
        }
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
    Client(#[from] hyper::Error),
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
        let mut body = body.lock();
        if body.attempt() != this.attempt {
            return Poll::Ready(Some(Err(RequestBodyError::Superseded)));
        }
        let frame = Pin::new(&mut *body).poll_frame(cx);
        drop(body);
        let progress = &this.progress;
        progress.awaits_client.store(frame.is_pending(), Relaxed);
        if let Poll::Ready(Some(Ok(frame))) = &frame
            && let Some(data) = frame.data_ref()
        {
            this.sent += data.len() as u64;
            progress.bytes.fetch_max(this.sent, Relaxed);
        }
        frame.map_err(RequestBodyError::from)
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
