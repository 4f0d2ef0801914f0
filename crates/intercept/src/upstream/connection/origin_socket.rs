//! An origin's socket, from which a response can be read after the origin has stopped reading the request.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::stream::{delegate_polls, delegate_writes};
use crate::upstream::connection_permit::ConnectionPermit;

/// Discards all writes after the first EPIPE or ECONNRESET. The end of the connection is reported to the reader instead, after
/// the bytes that were received before it.
///
/// An origin may answer a request before it has read the body (307, 401, 413) and close the connection, while the body is
/// still being sent. hyper would report the failed write, and lose the response.
///
/// The socket counts against the connection cap until it is closed, and fails once its permit is revoked.
#[derive(Debug)]
pub(in crate::upstream) struct OriginSocket {
    socket: TcpStream,
    is_broken: bool,
    /// Whether a write has got ECONNRESET. The kernel reports it once, so the next read would get the end of the stream.
    is_reset: bool,
    permit: Arc<ConnectionPermit>,
}

impl OriginSocket {
    pub(in crate::upstream) fn new(socket: TcpStream, permit: Arc<ConnectionPermit>) -> Self {
        Self {
            socket,
            is_broken: false,
            is_reset: false,
            permit,
        }
    }

    /// The result of a call, or an error if the call would wait and the permit is revoked.
    fn unless_revoked<T>(
        &self,
        polled: Poll<io::Result<T>>,
        cx: &Context<'_>,
    ) -> Poll<io::Result<T>> {
        if polled.is_pending() && self.permit.poll_revoked(cx) {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        polled
    }

    fn write(&mut self, cx: &mut Context<'_>, parts: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let len = || parts.iter().map(|part| part.len()).sum();
        if self.is_broken {
            return Poll::Ready(Ok(len()));
        }
        match Pin::new(&mut self.socket).poll_write_vectored(cx, parts) {
            Poll::Ready(Err(error)) if is_broken(&error) => {
                self.is_broken = true;
                self.is_reset = error.kind() == io::ErrorKind::ConnectionReset;
                Poll::Ready(Ok(len()))
            }
            written => self.unless_revoked(written, cx),
        }
    }
}

fn is_broken(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset
    )
}

impl AsyncRead for OriginSocket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.socket).poll_read(cx, buffer);
        ready!(self.unless_revoked(read, cx))?;
        let is_end = buffer.filled().len() == before && buffer.remaining() > 0;
        if is_end && self.is_reset {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for OriginSocket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.write(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.write(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    delegate_polls!(socket, poll_flush, poll_shutdown);
}

/// A TLS stream that may end without close_notify, which is noted and read as the end of the stream. In HTTP/1 it ends a
/// response without a length; other responses end by their length (RFC 9112, section 9.8).
#[derive(Debug)]
pub(in crate::upstream) struct CloseNotifyOptional<T> {
    stream: T,
    lacks_close_notify: Arc<AtomicBool>,
}

impl<T> CloseNotifyOptional<T> {
    /// Sets `lacks_close_notify` if the stream ends without close_notify.
    pub(in crate::upstream) fn new(stream: T, lacks_close_notify: Arc<AtomicBool>) -> Self {
        Self {
            stream,
            lacks_close_notify,
        }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for CloseNotifyOptional<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match Pin::new(&mut self.stream).poll_read(cx, buffer) {
            Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => {
                self.lacks_close_notify.store(true, Relaxed);
                Poll::Ready(Ok(()))
            }
            read => read,
        }
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for CloseNotifyOptional<T> {
    delegate_writes!(stream);
    delegate_polls!(stream, poll_flush, poll_shutdown);
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;
    use std::time::Duration;

    use tokio::io::AsyncReadExt;
    use tokio::net::TcpListener;
    use tokio::time::timeout;

    use super::*;
    use crate::upstream::connection_cap::ConnectionCap;

    #[tokio::test]
    async fn revoked_permit_closes_a_connection_whose_origin_is_silent() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let permit = ConnectionCap::new(1).acquire(addr.ip()).unwrap();
        let socket = TcpStream::connect(addr).await.unwrap();
        let (mut origin, _) = listener.accept().await.unwrap();
        let mut socket = OriginSocket::new(socket, permit.clone());
        let reader = tokio::spawn(async move { socket.read_u8().await });
        // The reader waits by the time this task goes on.
        tokio::task::yield_now().await;
        permit.revoke();
        let ended = timeout(Duration::from_secs(10), reader).await;
        let failed = ended.expect("it is woken").unwrap().unwrap_err();
        assert_eq!(failed.kind(), ErrorKind::ConnectionAborted);
        assert_eq!(origin.read(&mut [0]).await.unwrap(), 0);
    }
}
