//! A response's body on its way to the client, counted and never collected: the client's backpressure reaches the origin.

use std::error::Error as _;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::{Body, Frame, SizeHint};
use parking_lot::Mutex;
use tokio::time::{Instant, timeout};

use super::in_flight::InFlightRecord;
use super::stall_monitor::{POLLS_PER_TIMEOUT, Progress};
use crate::audit::{AuditRecord, ExchangeEnd};
use crate::request::buffered_body::BufferedBody;
use crate::request::received_body::{ReceivedBody, ReceivedBodyError};
use crate::stream::client_socket::CutResponse;
use crate::upstream::Lease;

/// A response's body. The audit line is written when the bodies of response and request have ended, or are aborted; then the
/// connection to the origin is free for the next request.
#[derive(Debug)]
pub(crate) struct ResponseBody {
    source: Source,
    request: Option<BufferedBody>,
    /// To be set if the body breaks off, where the client would not notice that otherwise.
    cut: Option<CutResponse>,
    /// Why the body breaks off at the next poll.
    failure: Option<ResponseBodyError>,
}

/// An origin's body, and the connection from which it is read.
#[derive(Debug)]
pub(crate) struct OriginBody {
    pub(crate) body: ReceivedBody,
    pub(crate) lease: Lease,
    /// For a body that only the end of the connection ends: whether TLS ended without close_notify.
    pub(crate) lacks_close_notify: Option<Arc<AtomicBool>>,
}

#[derive(Debug)]
enum Source {
    Proxy(Full<Bytes>, Option<Box<InFlightRecord>>),
    Origin(Arc<Transfer>),
}

/// An origin's body in transfer, shared with the stall monitor.
#[derive(Debug)]
struct Transfer {
    state: Mutex<TransferState>,
    limits: StallLimits,
}

/// How long a transfer may go without moving a byte before it is aborted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StallLimits {
    /// While the client does not read.
    pub(crate) client: Duration,
    /// While the origin sends nothing; `None` for no limit while both connections are open.
    pub(crate) origin: Option<Duration>,
    /// While the client sends the rest of its request, or the origin takes it, after the response has ended.
    pub(crate) upload: Duration,
}

#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "it is behind an Arc, and most are the large one for most of their life"
)]
enum TransferState {
    InFlight {
        origin: OriginBody,
        record: Box<InFlightRecord>,
        /// The task that waits for the next frame; `None` while the client has not taken the last frame.
        waker: Option<Waker>,
    },
    Complete,
    Aborted,
}

impl ResponseBody {
    /// A body of the proxy's own.
    pub(crate) fn from_proxy(body: Bytes, mut record: Option<Box<InFlightRecord>>) -> Self {
        let body = Full::new(body);
        // hyper polls no empty body.
        complete_at_end(&body, &mut record);
        Self {
            source: Source::Proxy(body, record),
            request: None,
            cut: None,
            failure: None,
        }
    }

    /// The origin's body, which is aborted if nothing moves for too long.
    pub(crate) fn from_origin(
        origin: OriginBody,
        record: Box<InFlightRecord>,
        limits: StallLimits,
    ) -> Self {
        let connection = Arc::clone(record.connection());
        let is_over = origin.body.is_end_stream();
        let mut state = TransferState::InFlight {
            origin,
            record,
            waker: None,
        };
        if is_over {
            state.complete(limits.upload);
        }
        let transfer = Arc::new(Transfer {
            state: Mutex::new(state),
            limits,
        });
        if !is_over {
            let transfer = Arc::downgrade(&transfer);
            connection.exchanges.watch(transfer);
        }
        Self {
            source: Source::Origin(transfer),
            request: None,
            cut: None,
            failure: None,
        }
    }

    /// Resets the client's connection if the body breaks off.
    pub(crate) fn reset_if_cut(&mut self, cut: &CutResponse) {
        self.cut = Some(cut.clone());
    }

    /// Holds the request's body until the response is sent.
    pub(crate) fn hold_request(&mut self, request: Option<BufferedBody>) {
        self.request = request;
    }
}

impl TransferState {
    /// Ends the transfer. If the request is still being sent, its exchange goes on, as long as it does not stall for
    /// `upload_limit`: an origin may answer early and read on.
    fn complete(&mut self, upload_limit: Duration) {
        let before = std::mem::replace(self, Self::Complete);
        if let Self::InFlight {
            origin, mut record, ..
        } = before
        {
            let lacks_close_notify = origin.lacks_close_notify;
            if lacks_close_notify.is_some_and(|lacks| lacks.load(Relaxed)) {
                record.lacks_close_notify = true;
            }
            let mut lease = origin.lease;
            if lease.is_sending() {
                // It may be set already, because the client has the whole response.
                record.end = ExchangeEnd::Cut;
                tokio::spawn(finish_upload(lease, record, upload_limit));
                return;
            }
            lease.return_to_pool();
            record.set_complete();
        }
    }

    fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
        upload_limit: Duration,
    ) -> Poll<Option<Result<Frame<Bytes>, ResponseBodyError>>> {
        let (body, record, waker) = match self {
            Self::InFlight {
                origin,
                record,
                waker,
            } => (&mut origin.body, record, waker),
            Self::Complete => return Poll::Ready(None),
            Self::Aborted => return Poll::Ready(Some(Err(ResponseBodyError::Stalled))),
        };
        let frame = Pin::new(&mut *body).poll_frame(cx);
        count_received(&frame, record);
        *waker = frame.is_pending().then(|| cx.waker().clone());
        match &frame {
            Poll::Ready(None) => self.complete(upload_limit),
            // hyper polls no body after its trailers, and a body of HTTP/1 does not tell that it has ended with them.
            Poll::Ready(Some(Ok(frame))) if frame.is_trailers() || body.is_end_stream() => {
                self.complete(upload_limit);
            }
            Poll::Ready(Some(Err(_))) => record.end = ExchangeEnd::CutByOrigin,
            // HTTP/2: the end of the stream is still to come, but a client that closes now has received everything.
            Poll::Ready(Some(Ok(_))) if body.size_hint().exact() == Some(0) => {
                record.end = ExchangeEnd::Complete;
            }
            Poll::Ready(Some(Ok(_))) | Poll::Pending => {}
        }
        frame.map(|frame| frame.map(|frame| frame.map_err(ResponseBodyError::new)))
    }
}

impl Progress for Transfer {
    fn bytes_moved(&self) -> Option<u64> {
        match &*self.state.lock() {
            TransferState::InFlight { record, .. } => Some(record.bytes_moved()),
            _ => None,
        }
    }

    fn stall_limit(&self) -> Option<Duration> {
        match &*self.state.lock() {
            TransferState::InFlight { waker: None, .. } => Some(self.limits.client),
            // A half-closed client may have closed altogether, and the origin may stay silent forever.
            TransferState::InFlight { record, .. } if record.connection().is_half_closed() => {
                Some(self.limits.origin.unwrap_or(self.limits.client))
            }
            _ => self.limits.origin,
        }
    }

    fn abort(&self) {
        let before = std::mem::replace(&mut *self.state.lock(), TransferState::Aborted);
        if let TransferState::InFlight {
            mut record, waker, ..
        } = before
        {
            record.end = ExchangeEnd::Idle;
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }
}

/// Why a response's body breaks off.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ResponseBodyError {
    #[error(transparent)]
    Received(ReceivedBodyError),
    /// Without its source: hyper would reset the client's stream with the same PROTOCOL_ERROR, as if the client had caused it.
    #[error("the origin's response is no valid HTTP/2")]
    Malformed,
    #[error("nothing has moved for too long")]
    Stalled,
}

impl ResponseBodyError {
    fn new(error: ReceivedBodyError) -> Self {
        let source = error.source().and_then(|source| source.downcast_ref());
        match source.and_then(h2::Error::reason) {
            Some(h2::Reason::PROTOCOL_ERROR) => Self::Malformed,
            _ => Self::Received(error),
        }
    }
}

impl Drop for ResponseBody {
    fn drop(&mut self) {
        if let Some(request) = self.request.take() {
            request.drain_in_background();
        }
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = ResponseBodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ResponseBodyError>>> {
        let this = self.get_mut();
        match &mut this.source {
            Source::Proxy(body, record) => {
                let frame = Pin::new(&mut *body).poll_frame(cx);
                if let Some(record) = record {
                    count_received(&frame, record);
                }
                complete_at_end(body, record);
                frame.map(|frame| frame.map(|frame| frame.map_err(|never| match never {})))
            }
            Source::Origin(transfer) => {
                if let Some(failure) = this.failure.take() {
                    if let Some(cut) = &this.cut {
                        cut.set();
                    }
                    return Poll::Ready(Some(Err(failure)));
                }
                let upload_limit = transfer.limits.upload;
                let frame = transfer.state.lock().poll_frame(cx, upload_limit);
                let Poll::Ready(Some(Err(failure))) = frame else {
                    return frame;
                };
                // At a failure hyper discards what it has not written yet; while a body is pending, it writes. A client that does
                // not even get the head might send its request again.
                this.failure = Some(failure);
                cx.waker().wake_by_ref();
                Poll::Pending
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.source {
            Source::Proxy(body, _) => body.is_end_stream(),
            Source::Origin(transfer) => match &*transfer.state.lock() {
                TransferState::InFlight { origin, .. } => origin.body.is_end_stream(),
                TransferState::Complete => true,
                TransferState::Aborted => false,
            },
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            Source::Proxy(body, _) => body.size_hint(),
            Source::Origin(transfer) => match &*transfer.state.lock() {
                TransferState::InFlight { origin, .. } => origin.body.size_hint(),
                TransferState::Complete => SizeHint::with_exact(0),
                TransferState::Aborted => SizeHint::default(),
            },
        }
    }
}

/// Ends an exchange whose response has ended, once its request has been sent. Aborts it if nothing moves for `stall_limit`.
async fn finish_upload(mut lease: Lease, mut record: Box<InFlightRecord>, stall_limit: Duration) {
    let (mut moved, mut since) = (record.bytes_moved(), Instant::now());
    while timeout(stall_limit / POLLS_PER_TIMEOUT, lease.wait_sent())
        .await
        .is_err()
    {
        let bytes = record.bytes_moved();
        if bytes != moved {
            (moved, since) = (bytes, Instant::now());
        } else if since.elapsed() >= stall_limit {
            record.end = ExchangeEnd::Idle;
            return;
        }
    }
    lease.return_to_pool();
    record.set_complete();
}

fn complete_at_end(body: &Full<Bytes>, record: &mut Option<Box<InFlightRecord>>) {
    if body.is_end_stream()
        && let Some(mut record) = record.take()
    {
        record.end = ExchangeEnd::Complete;
    }
}

fn count_received<E>(frame: &Poll<Option<Result<Frame<Bytes>, E>>>, record: &AuditRecord) {
    if let Poll::Ready(Some(Ok(frame))) = frame
        && let Some(data) = frame.data_ref()
    {
        record.to_downstream.fetch_add(data.len() as u64, Relaxed);
    }
}
