//! Bodies on their way, counted and never collected.

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::{Body, Frame, Incoming, SizeHint};

use crate::audit::{Record, Sending};
use crate::http::stall_monitor::Moves;
use crate::request::buffered_body::Held;
use crate::upstream::Lease;

/// A request's body on its way to the origin.
#[derive(Debug)]
pub(crate) struct Outgoing {
    body: Option<Held>,
    sent: Arc<Sending>,
}

impl Outgoing {
    pub(crate) fn new(body: Option<Held>, sent: Arc<Sending>) -> Self {
        Self { body, sent }
    }

    /// The same once more, if it is none.
    pub(crate) fn repeated(&self) -> Option<Self> {
        let sent = || Arc::clone(&self.sent);
        self.body.is_none().then(|| Self::new(None, sent()))
    }
}

impl Body for Outgoing {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let this = self.get_mut();
        let Some(body) = &this.body else {
            return Poll::Ready(None);
        };
        let frame = Pin::new(&mut *body.lock()).poll_frame(cx);
        this.sent.awaits_client.store(frame.is_pending(), Relaxed);
        count(&frame, &this.sent.octets);
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body
            .as_ref()
            .is_none_or(|body| body.lock().is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        match &self.body {
            Some(body) => body.lock().size_hint(),
            None => SizeHint::with_exact(0),
        }
    }
}

/// An answer's body on its way to the client. When it ends, or is given up, the audit line is written;
/// when it has ended, the connection that it came through is free for the next request.
#[derive(Debug)]
pub(crate) struct Answer {
    from: From,
    request: Option<Held>,
}

#[derive(Debug)]
enum From {
    Us(Full<Bytes>, Option<Box<Record>>),
    Origin(Arc<Flow>),
}

/// An answer that an origin gives. It is shared with who watches that it moves.
#[derive(Debug)]
struct Flow(Mutex<Flowing>);

#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "it is behind an Arc, and most are the large one for most of their life"
)]
enum Flowing {
    On {
        body: Incoming,
        lease: Lease,
        record: Box<Record>,
        /// Who waits for the next frame.
        waker: Option<Waker>,
    },
    Complete,
    GivenUp,
}

impl Answer {
    /// One of our own.
    pub(crate) fn ours(body: Bytes, mut record: Option<Box<Record>>) -> Self {
        let body = Full::new(body);
        // hyper asks for nothing of an empty one.
        complete_if_over(&body, &mut record);
        Self {
            from: From::Us(body, record),
            request: None,
        }
    }

    /// Lets go of the request only once the answer has gone.
    pub(crate) fn hold(&mut self, request: Option<Held>) {
        self.request = request;
    }

    /// The origin's, which is given up if nothing moves for so long.
    pub(crate) fn origins(
        body: Incoming,
        lease: Lease,
        record: Box<Record>,
        silence: Duration,
    ) -> Self {
        let client = Arc::clone(&record.client);
        let is_over = body.is_end_stream();
        let mut flowing = Flowing::On {
            body,
            lease,
            record,
            waker: None,
        };
        if is_over {
            flowing.complete();
        }
        let flow = Arc::new(Flow(Mutex::new(flowing)));
        if !is_over {
            let flow = Arc::downgrade(&flow);
            client.exchanges.watch(flow, silence);
        }
        Self {
            from: From::Origin(flow),
            request: None,
        }
    }
}

impl Flow {
    fn lock(&self) -> MutexGuard<'_, Flowing> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Flowing {
    fn complete(&mut self) {
        let before = std::mem::replace(self, Self::Complete);
        if let Self::On {
            lease, mut record, ..
        } = before
        {
            lease.give_back();
            record.complete();
        }
    }

    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Failed>>> {
        let (body, record, waker) = match self {
            Self::On {
                body,
                record,
                waker,
                ..
            } => (body, record, waker),
            Self::Complete => return Poll::Ready(None),
            Self::GivenUp => return Poll::Ready(Some(Err(Failed::Idle))),
        };
        let frame = Pin::new(&mut *body).poll_frame(cx);
        count(&frame, &record.received);
        match &frame {
            Poll::Ready(None) => self.complete(),
            Poll::Ready(Some(Ok(_))) if body.is_end_stream() => self.complete(),
            Poll::Ready(Some(Err(_))) => record.cut_by_origin(),
            Poll::Ready(Some(Ok(_))) => {}
            Poll::Pending => *waker = Some(cx.waker().clone()),
        }
        frame.map(|frame| frame.map(|frame| frame.map_err(Failed::Http)))
    }
}

impl Moves for Flow {
    fn moved(&self) -> Option<u64> {
        match &*self.lock() {
            Flowing::On { record, .. } => Some(record.moved()),
            _ => None,
        }
    }

    fn give_up(&self) {
        let before = std::mem::replace(&mut *self.lock(), Flowing::GivenUp);
        if let Flowing::On {
            mut record, waker, ..
        } = before
        {
            record.idle();
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }
}

/// Why an answer is not whole.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failed {
    #[error(transparent)]
    Http(hyper::Error),
    #[error("nothing has moved for too long")]
    Idle,
}

impl Drop for Answer {
    fn drop(&mut self) {
        if let Some(request) = self.request.take() {
            request.let_go();
        }
    }
}

impl Body for Answer {
    type Data = Bytes;
    type Error = Failed;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Failed>>> {
        let (body, record) = match &mut self.get_mut().from {
            From::Us(body, record) => (body, record),
            From::Origin(flow) => return flow.lock().poll_frame(cx),
        };
        let frame = Pin::new(&mut *body).poll_frame(cx);
        let frame = frame.map(|frame| frame.map(|frame| frame.map_err(|never| match never {})));
        if let Some(record) = record {
            count(&frame, &record.received);
        }
        complete_if_over(body, record);
        frame
    }

    fn is_end_stream(&self) -> bool {
        match &self.from {
            From::Us(body, _) => body.is_end_stream(),
            From::Origin(flow) => match &*flow.lock() {
                Flowing::On { body, .. } => body.is_end_stream(),
                Flowing::Complete => true,
                Flowing::GivenUp => false,
            },
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.from {
            From::Us(body, _) => body.size_hint(),
            From::Origin(flow) => match &*flow.lock() {
                Flowing::On { body, .. } => body.size_hint(),
                Flowing::Complete => SizeHint::with_exact(0),
                Flowing::GivenUp => SizeHint::default(),
            },
        }
    }
}

fn complete_if_over(body: &Full<Bytes>, record: &mut Option<Box<Record>>) {
    if body.is_end_stream()
        && let Some(mut record) = record.take()
    {
        record.complete();
    }
}

fn count<E>(frame: &Poll<Option<Result<Frame<Bytes>, E>>>, into: &AtomicU64) {
    if let Poll::Ready(Some(Ok(frame))) = frame
        && let Some(data) = frame.data_ref()
    {
        into.fetch_add(data.len() as u64, Relaxed);
    }
}
