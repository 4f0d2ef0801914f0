//! The body of a request that is not answered yet.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use hyper::body::{Body, Frame, SizeHint};
use parking_lot::{Mutex, MutexGuard};
use tokio::runtime::Handle;
use tokio::time::timeout;

use super::received_body::{ReceivedBody, ReceivedBodyError};

/// A request's body, held until the response has gone, and then drained for a moment.
///
/// Dropping it tells the client that the rest is not wanted: by RST_STREAM in HTTP/2, by closing in HTTP/1. Many clients
/// then don't read the response, which may say why.
#[derive(Clone, Debug)]
pub(crate) struct BufferedBody(Arc<Mutex<Remainder>>);

/// The part of a body that was not passed on yet, and a copy of the part that was, for a retry.
#[derive(Debug)]
pub(crate) struct Remainder {
    /// Read already, for the check or by a failed attempt.
    buffered: VecDeque<Frame<Bytes>>,
    body: ReceivedBody,
    replay: Replay,
    /// The number of the attempt to send the body. Only the last attempt may read.
    attempt: u32,
    expectation: Expectation,
}

/// Whether the client waits for 100 (Continue), which hyper sends once the body is read (RFC 9110, section 10.1.1).
#[derive(Debug, Default)]
enum Expectation {
    /// The body may be read.
    #[default]
    Met,
    /// The origin has not asked for the body. The waker is of the task that will read it.
    Awaited(Option<Waker>),
}

/// The data that was passed on, for a retry.
#[derive(Debug, Default)]
enum Replay {
    /// Nothing is kept: no retry is to come, or more was passed on than would be kept.
    #[default]
    Off,
    Kept {
        data: Vec<Bytes>,
        len: usize,
    },
}

/// The beginning of a body, which a check service sees.
#[derive(Clone, Debug)]
pub struct BodyPrefix {
    /// The bytes, at most [`CheckConfig::body`](crate::authz::CheckConfig::body) of them.
    pub bytes: Bytes,
    /// Whether the body is longer.
    pub truncated: bool,
}

impl BufferedBody {
    /// Buffers nothing yet. `None` if the request has no body.
    pub(crate) fn new(body: ReceivedBody) -> Option<Self> {
        (!body.is_end_stream()).then(|| {
            Self(Arc::new(Mutex::new(Remainder {
                buffered: VecDeque::new(),
                body,
                replay: Replay::Off,
                attempt: 0,
                expectation: Expectation::Met,
            })))
        })
    }

    /// Reads until there are `max` bytes, the body ends, or the client sends nothing for `pause`: in a bidirectional call the
    /// client waits for a response first. Buffers the read frames for the origin.
    pub(crate) async fn read_prefix(
        &self,
        max: usize,
        pause: Duration,
    ) -> Result<BodyPrefix, ReceivedBodyError> {
        // One buffer for all frames: a client may send its body in many tiny ones, each of which would take the memory of a
        // `Frame`.
        let mut bytes = BytesMut::new();
        let mut rest = None;
        let mut truncated = false;
        while !truncated && !self.lock().body.is_end_stream() {
            let next = poll_fn(|cx| Pin::new(&mut self.lock().body).poll_frame(cx));
            let Ok(next) = timeout(pause, next).await else {
                truncated = true;
                break;
            };
            let Some(frame) = next.transpose()? else {
                break;
            };
            match frame.into_data() {
                Ok(mut data) => {
                    let seen = data.split_to(data.len().min(max - bytes.len()));
                    bytes.extend_from_slice(&seen);
                    let is_full = bytes.len() == max && !self.lock().body.is_end_stream();
                    truncated = is_full || !data.is_empty();
                    rest = truncated.then(|| Frame::data(data));
                }
                Err(trailers) => rest = Some(trailers),
            }
        }
        let bytes = bytes.freeze();
        let mut remainder = self.lock();
        if !bytes.is_empty() {
            remainder.buffered.push_back(Frame::data(bytes.clone()));
        }
        remainder.buffered.extend(rest);
        Ok(BodyPrefix { bytes, truncated })
    }

    /// Keeps attempts from reading the body until [`BufferedBody::continue_now`].
    pub(crate) fn await_continue(&self) {
        self.lock().expectation = Expectation::Awaited(None);
    }

    /// Lets the body be read: the origin wants it.
    pub(crate) fn continue_now(&self) {
        let before = mem::take(&mut self.lock().expectation);
        if let Expectation::Awaited(Some(waker)) = before {
            waker.wake();
        }
    }

    /// Keeps what is passed on from now on, up to [`MAX_REPLAYED`].
    pub(crate) fn keep_for_retry(&self) {
        self.lock().replay = Replay::Kept {
            data: Vec::new(),
            len: 0,
        };
    }

    /// Frees what was kept: the request will not be sent again.
    pub(crate) fn discard_kept(&self) {
        self.lock().replay = Replay::Off;
    }

    /// Begins a new attempt with the whole body, and returns the attempt's number. Earlier attempts get an error. `None` if
    /// part of the body was passed on and not kept.
    pub(crate) fn rewind(&self) -> Option<u32> {
        let mut remainder = self.lock();
        let Replay::Kept { data, .. } = mem::take(&mut remainder.replay) else {
            return None;
        };
        for data in data.into_iter().rev() {
            remainder.buffered.push_front(Frame::data(data));
        }
        remainder.attempt += 1;
        Some(remainder.attempt)
    }

    /// Drains the rest of the body in the background, for [`DRAIN_TIMEOUT`] at most, unless another holder reads it. A body
    /// that the origin has not asked for is abandoned: the client may never send it.
    pub(crate) fn drain_in_background(self) {
        if self.lock().awaits_continue() {
            self.lock().attempt += 1;
            return self.continue_now();
        }
        // Without a runtime everything ends anyway.
        if !self.lock().is_end_stream()
            && let Ok(runtime) = Handle::try_current()
        {
            runtime.spawn(timeout(DRAIN_TIMEOUT, self.drain()));
        }
    }

    async fn drain(self) {
        let mut left = MAX_DRAINED;
        while Arc::strong_count(&self.0) == 1 {
            let frame = poll_fn(|cx| Pin::new(&mut *self.lock()).poll_frame(cx)).await;
            let Some(Ok(frame)) = frame else {
                return;
            };
            let len = frame.data_ref().map_or(0, Bytes::len);
            let Some(rest) = left.checked_sub(len) else {
                return;
            };
            left = rest;
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Remainder> {
        self.0.lock()
    }
}

impl Remainder {
    /// Whether the client waits for 100 (Continue).
    pub(crate) fn awaits_continue(&self) -> bool {
        matches!(self.expectation, Expectation::Awaited(_))
    }

    /// The number of the attempt that may read.
    pub(crate) fn attempt(&self) -> u32 {
        self.attempt
    }
}

impl Replay {
    fn record(&mut self, frame: &Frame<Bytes>) {
        let Self::Kept { data, len } = self else {
            return;
        };
        match frame.data_ref() {
            Some(next) if *len + next.len() <= MAX_REPLAYED && data.len() < MAX_REPLAYED_FRAMES => {
                *len += next.len();
                data.push(next.clone());
            }
            _ => *self = Self::Off,
        }
    }
}

impl Body for Remainder {
    type Data = Bytes;
    type Error = ReceivedBodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ReceivedBodyError>>> {
        if let Expectation::Awaited(waker) = &mut self.expectation {
            *waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let polled = match self.buffered.pop_front() {
            Some(frame) => Poll::Ready(Some(Ok(frame))),
            None => Pin::new(&mut self.body).poll_frame(cx),
        };
        if let Poll::Ready(Some(Ok(frame))) = &polled {
            self.replay.record(frame);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.buffered.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let buffered: u64 = self
            .buffered
            .iter()
            .filter_map(Frame::data_ref)
            .map(|data| data.len() as u64)
            .sum();
        let rest = self.body.size_hint();
        let mut hint = SizeHint::new();
        hint.set_lower(rest.lower() + buffered);
        if let Some(upper) = rest.upper() {
            hint.set_upper(upper + buffered);
        }
        hint
    }
}

/// Bytes of a body that are kept for a retry until the response begins: enough for most API calls. A larger body is sent only
/// once.
const MAX_REPLAYED: usize = 64 * 1024;
/// Frames that are kept: each may hold the whole buffer that it was read into.
const MAX_REPLAYED_FRAMES: usize = 64;
/// Bytes that are drained of a request that was answered before it had ended.
const MAX_DRAINED: usize = 16 << 20;
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);
