//! Bodies on their way, counted and never collected.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::{Body, Frame, Incoming, SizeHint};

use crate::audit::Record;
use crate::held::Held;
use crate::upstream::Lease;

/// A request's body on its way to the origin.
#[derive(Debug)]
pub(crate) struct Outgoing {
    body: Option<Held>,
    sent: Arc<AtomicU64>,
}

impl Outgoing {
    pub(crate) fn new(body: Option<Held>, sent: Arc<AtomicU64>) -> Self {
        Self { body, sent }
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
        count(&frame, &this.sent);
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
    record: Option<Box<Record>>,
    request: Option<Held>,
}

#[derive(Debug)]
enum From {
    Us(Full<Bytes>),
    Origin {
        body: Incoming,
        lease: Option<Lease>,
    },
}

impl Answer {
    /// One of our own.
    pub(crate) fn ours(body: Bytes, record: Option<Box<Record>>) -> Self {
        Self {
            from: From::Us(Full::new(body)),
            record,
            request: None,
        }
    }

    /// Lets go of the request only once the answer has gone.
    pub(crate) fn hold(&mut self, request: Option<Held>) {
        self.request = request;
    }

    /// The origin's.
    pub(crate) fn origins(body: Incoming, lease: Lease, record: Box<Record>) -> Self {
        let mut answer = Self {
            from: From::Origin {
                body,
                lease: Some(lease),
            },
            record: Some(record),
            request: None,
        };
        if answer.is_end_stream() {
            answer.end();
        }
        answer
    }

    fn end(&mut self) {
        if let From::Origin { lease, .. } = &mut self.from
            && let Some(lease) = lease.take()
        {
            lease.give_back();
        }
        if let Some(mut record) = self.record.take() {
            record.complete();
        }
    }
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
    type Error = hyper::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let this = self.get_mut();
        let frame = match &mut this.from {
            From::Us(body) => {
                let frame = Pin::new(body).poll_frame(cx);
                frame.map(|frame| frame.map(|frame| frame.map_err(|never| match never {})))
            }
            From::Origin { body, .. } => Pin::new(body).poll_frame(cx),
        };
        if let Some(record) = &this.record {
            count(&frame, &record.received);
        }
        match &frame {
            Poll::Ready(None) => this.end(),
            Poll::Ready(Some(Err(_))) => {
                if let Some(record) = &mut this.record {
                    record.cut_by_origin();
                }
            }
            Poll::Ready(Some(Ok(_))) if this.is_end_stream() => this.end(),
            _ => {}
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        match &self.from {
            From::Us(body) => body.is_end_stream(),
            From::Origin { body, .. } => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.from {
            From::Us(body) => body.size_hint(),
            From::Origin { body, .. } => body.size_hint(),
        }
    }
}

fn count(frame: &Poll<Option<Result<Frame<Bytes>, hyper::Error>>>, into: &AtomicU64) {
    if let Poll::Ready(Some(Ok(frame))) = frame
        && let Some(data) = frame.data_ref()
    {
        into.fetch_add(data.len() as u64, Relaxed);
    }
}
