//! A corked stream: the last flight of a TLS handshake is held back and sent together with the first data.
//!
//! A client's Finished is followed by a request. The session tickets at the end of a TLS 1.3 server's handshake are followed by
//! a response. Sent as a segment of its own, the flight would cost one more wake-up at the other end, some 20 µs on loopback,
//! and one more packet on a network.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// During the handshake, buffers writes until a read, which waits for the answer to them. After
/// [`CorkedStream::handshake_done`], buffers the last flight until the next write.
#[derive(Debug)]
pub(crate) struct CorkedStream<T> {
    stream: T,
    buffered: Vec<u8>,
    flush_at: FlushAt,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FlushAt {
    Read,
    Write,
    Now,
}

impl<T: AsyncWrite + Unpin> CorkedStream<T> {
    /// A stream at the beginning of a handshake, whose messages bound the size of the buffer.
    pub(crate) fn new(stream: T) -> Self {
        Self {
            stream,
            buffered: Vec::new(),
            flush_at: FlushAt::Read,
        }
    }

    /// Ends the handshake. `is_awaited`: the other end waits for the last flight, so the next read or flush sends it.
    pub(crate) fn handshake_done(&mut self, is_awaited: bool) {
        self.flush_at = if is_awaited {
            FlushAt::Now
        } else {
            FlushAt::Write
        };
    }

    /// Ends a failed handshake: sends the buffered alert, as far as the socket takes it at once.
    pub(crate) async fn handshake_failed(mut self) {
        std::future::poll_fn(|cx| {
            let _ = self.poll_send_buffered(cx);
            Poll::Ready(())
        })
        .await;
    }

    fn poll_send_buffered(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.buffered.is_empty() {
            let n = ready!(Pin::new(&mut self.stream).poll_write(cx, &self.buffered))?;
            if n == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.buffered.drain(..n);
        }
        // Frees the buffer: it was for the handshake, and the connection may live for long.
        self.buffered = Vec::new();
        Poll::Ready(Ok(()))
    }

    /// Buffers a write during the handshake, and the first write after it, with which the last flight is sent. `None` for any
    /// later write, which is not buffered.
    fn buffer(&mut self, cx: &mut Context<'_>, parts: &[IoSlice<'_>]) -> Option<io::Result<usize>> {
        if self.flush_at == FlushAt::Now {
            return None;
        }
        for part in parts {
            self.buffered.extend_from_slice(part);
        }
        if self.flush_at == FlushAt::Write {
            self.flush_at = FlushAt::Now;
            // Bytes that the socket does not take now are sent before anything else.
            if let Poll::Ready(Err(error)) = self.poll_send_buffered(cx) {
                return Some(Err(error));
            }
        }
        Some(Ok(parts.iter().map(|part| part.len()).sum()))
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncRead for CorkedStream<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.flush_at != FlushAt::Write
            && let Poll::Ready(Err(error)) = this.poll_send_buffered(cx)
        {
            return Poll::Ready(Err(error));
        }
        Pin::new(&mut this.stream).poll_read(cx, buffer)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for CorkedStream<T> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if let Some(taken) = this.buffer(cx, parts) {
            return Poll::Ready(taken);
        }
        ready!(this.poll_send_buffered(cx))?;
        Pin::new(&mut this.stream).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.flush_at != FlushAt::Now {
            return Poll::Ready(Ok(()));
        }
        ready!(this.poll_send_buffered(cx))?;
        Pin::new(&mut this.stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_send_buffered(cx))?;
        Pin::new(&mut this.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// Keeps each write apart, accepts `capacity` more bytes, and has nothing to read.
    #[derive(Debug)]
    struct Wire {
        writes: Vec<Vec<u8>>,
        capacity: usize,
    }

    impl AsyncRead for Wire {
        fn poll_read(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            _: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    impl AsyncWrite for Wire {
        fn poll_write(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            let n = self.capacity.min(bytes.len());
            if n == 0 {
                return Poll::Pending;
            }
            self.capacity -= n;
            self.writes.push(bytes[..n].to_vec());
            Poll::Ready(Ok(n))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    /// A client's stream whose hello was sent, and whose Finished is still buffered.
    async fn stream_with_buffered_finished() -> CorkedStream<Wire> {
        let (writes, capacity) = (Vec::new(), usize::MAX);
        let mut stream = CorkedStream::new(Wire { writes, capacity });
        stream.write_all(b"hel").await.unwrap();
        stream.write_all(b"lo").await.unwrap();
        stream.flush().await.unwrap();
        assert!(stream.stream.writes.is_empty(), "sent before the read");
        assert_eq!(stream.read(&mut [0; 8]).await.unwrap(), 0);
        assert_eq!(stream.stream.writes, [b"hello"], "not sent by the read");
        stream.write_all(b"finished").await.unwrap();
        stream
    }

    #[tokio::test]
    async fn shutdown_sends_the_buffer() {
        let mut stream = stream_with_buffered_finished().await;
        stream.handshake_done(false);
        stream.shutdown().await.unwrap();
        assert_eq!(stream.stream.writes[1], b"finished");
    }

    /// After a short write, the rest of the buffer is sent first, and no more is accepted before.
    #[tokio::test]
    async fn short_writes_keep_the_order() {
        let mut stream = stream_with_buffered_finished().await;
        stream.handshake_done(false);
        stream.stream.capacity = 4;
        stream.write_all(b", request").await.unwrap();
        let is_pending = std::future::poll_fn(|cx| {
            let written = Pin::new(&mut stream).poll_write(cx, b"next");
            Poll::Ready(written.is_pending())
        });
        assert!(is_pending.await);
        stream.stream.capacity = usize::MAX;
        stream.write_all(b", next").await.unwrap();
        stream.flush().await.unwrap();
        let all = stream.stream.writes.concat();
        assert_eq!(all, b"hellofinished, request, next");
        assert_eq!(stream.buffered.capacity(), 0);
    }
}
