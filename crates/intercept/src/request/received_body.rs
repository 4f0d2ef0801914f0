//! The body of a request or response as it is received.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::Version;
use hyper::body::{Body, Frame, Incoming, SizeHint};

/// A body that ends only where its message does.
///
/// hyper takes RST_STREAM and GOAWAY with NO_ERROR for the end of a body, because a server that has answered early stops the
/// request by them (RFC 9113, section 8.1). But peers also abort a body so, and hyper itself a connection whose PING is not
/// answered.
#[derive(Debug)]
pub(crate) struct ReceivedBody {
    incoming: Incoming,
    /// Whether END_STREAM ends the body, which hyper's `is_end_stream` reports. It does not report the last chunk of HTTP/1.
    is_http2: bool,
}

/// Why a body is incomplete.
#[derive(Debug, thiserror::Error)]
pub enum ReceivedBodyError {
    /// The connection or stream failed, or the framing is invalid.
    #[error(transparent)]
    Http(#[from] hyper::Error),
    /// RST_STREAM or GOAWAY without an error came before END_STREAM.
    #[error("the stream was closed before the end of the body")]
    Closed,
}

impl ReceivedBody {
    pub(crate) fn new(incoming: Incoming, version: Version) -> Self {
        Self {
            incoming,
            is_http2: version == Version::HTTP_2,
        }
    }
}

impl Body for ReceivedBody {
    type Data = Bytes;
    type Error = ReceivedBodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ReceivedBodyError>>> {
        let frame = ready!(Pin::new(&mut self.incoming).poll_frame(cx));
        if frame.is_none() && self.is_http2 && !self.incoming.is_end_stream() {
            return Poll::Ready(Some(Err(ReceivedBodyError::Closed)));
        }
        Poll::Ready(frame.map(|frame| frame.map_err(ReceivedBodyError::from)))
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}
