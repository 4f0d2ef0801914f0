//! The body of a request that is not answered yet.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::runtime::Handle;
use tokio::time::timeout;

/// A request's body, which whoever answers holds on to until the answer has gone, and reads on for a moment.
///
/// Letting go of it tells the client that nobody wants the rest: by RST_STREAM in HTTP/2, by closing in HTTP/1.
/// Many clients then don't look at the answer any more, which may say why.
#[derive(Clone, Debug)]
pub(crate) struct Held(Arc<Mutex<Rest>>);

/// What is left of it.
#[derive(Debug)]
pub(crate) struct Rest {
    /// Read already, to be asked about.
    ahead: VecDeque<Frame<Bytes>>,
    body: Incoming,
}

/// How it begins.
#[derive(Debug)]
pub(crate) struct Beginning {
    pub(crate) octets: Bytes,
    /// Whether there is more.
    pub(crate) truncated: bool,
}

impl Held {
    /// `None` where there is no body.
    pub(crate) fn new(body: Incoming) -> Option<Self> {
        let ahead = VecDeque::new();
        (!body.is_end_stream()).then(|| Self(Arc::new(Mutex::new(Rest { ahead, body }))))
    }

    /// Reads until there are `most` octets or the body ends. All of it is still there for who reads on.
    ///
    /// # Errors
    ///
    /// It breaks off.
    pub(crate) async fn begin(&self, most: usize) -> hyper::Result<Beginning> {
        let mut octets = BytesMut::new();
        let mut truncated = false;
        while !truncated && !self.lock().body.is_end_stream() {
            let next = poll_fn(|cx| Pin::new(&mut self.lock().body).poll_frame(cx)).await;
            let Some(frame) = next.transpose()? else {
                break;
            };
            let data = frame.data_ref().map_or(&[][..], Bytes::as_ref);
            let seen = data.len().min(most - octets.len());
            octets.extend_from_slice(data.get(..seen).unwrap_or_default());
            let mut rest = self.lock();
            truncated = seen < data.len() || octets.len() == most && !rest.body.is_end_stream();
            rest.ahead.push_back(frame);
        }
        let octets = octets.freeze();
        Ok(Beginning { octets, truncated })
    }

    /// Lets go of it, but reads and forgets what is left for a moment, if nobody else is reading.
    pub(crate) fn let_go(self) {
        // Without a runtime everything ends anyway.
        if !self.lock().is_end_stream()
            && let Ok(runtime) = Handle::try_current()
        {
            runtime.spawn(timeout(LINGER, self.drain()));
        }
    }

    async fn drain(self) {
        let mut left = MOST_DRAINED;
        while Arc::strong_count(&self.0) == 1 {
            let frame = poll_fn(|cx| Pin::new(&mut *self.lock()).poll_frame(cx)).await;
            let Some(Ok(frame)) = frame else {
                return;
            };
            let len = frame.data_ref().map_or(0, Bytes::len);
            match left.checked_sub(len) {
                Some(less) => left = less,
                None => return,
            }
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Rest> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Body for Rest {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match self.ahead.pop_front() {
            Some(frame) => Poll::Ready(Some(Ok(frame))),
            None => Pin::new(&mut self.body).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.ahead.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let data = self.ahead.iter().filter_map(Frame::data_ref);
        let ahead: u64 = data.map(|data| data.len() as u64).sum();
        let rest = self.body.size_hint();
        let mut hint = SizeHint::new();
        hint.set_lower(rest.lower() + ahead);
        if let Some(upper) = rest.upper() {
            hint.set_upper(upper + ahead);
        }
        hint
    }
}

/// Of a request that was answered before it had ended.
const MOST_DRAINED: usize = 16 << 20;
const LINGER: Duration = Duration::from_secs(2);
