//! A stream on which the last flight of a TLS handshake waits for what is said next.
//!
//! A client's Finished is followed by a request, and the tickets that a server of TLS 1.3 ends with by an answer. Each
//! in a segment of its own is a wake-up more at the other end, which costs more than what is in it: with loopback
//! some 20 µs, and with a network a packet.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// What is written is kept until something is to be read: then the other end has to have all of it. Once the handshake
/// is [over](Self::over), it is kept until something more is written.
#[derive(Debug)]
pub(crate) struct Corked<T> {
    stream: T,
    kept: Vec<u8>,
    until: Until,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Until {
    Read,
    Write,
    Now,
}

impl<T: AsyncWrite + Unpin> Corked<T> {
    /// For a handshake, whose messages are no longer than it makes them.
    pub(crate) fn new(stream: T) -> Self {
        Self {
            stream,
            kept: Vec::new(),
            until: Until::Read,
        }
    }

    /// The handshake is over. `awaited`: the other end says nothing before it has what is kept.
    pub(crate) fn over(&mut self, awaited: bool) {
        self.until = if awaited { Until::Now } else { Until::Write };
    }

    /// The handshake has failed. What says why is kept here, and goes if it can go at once.
    pub(crate) async fn failed(mut self) {
        std::future::poll_fn(|cx| {
            let _ = self.poll_push(cx);
            Poll::Ready(())
        })
        .await;
    }

    fn poll_push(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.kept.is_empty() {
            let n = ready!(Pin::new(&mut self.stream).poll_write(cx, &self.kept))?;
            if n == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.kept.drain(..n);
        }
        // It was for the handshake, and the connection may live for long.
        self.kept = Vec::new();
        Poll::Ready(Ok(()))
    }

    /// Takes what is written, if it goes with what is kept.
    fn keep(&mut self, cx: &mut Context<'_>, parts: &[IoSlice<'_>]) -> Option<io::Result<usize>> {
        if self.until == Until::Now {
            return None;
        }
        for part in parts {
            self.kept.extend_from_slice(part);
        }
        if self.until == Until::Write {
            self.until = Until::Now;
            // What can't go now goes before anything else does.
            if let Poll::Ready(Err(error)) = self.poll_push(cx) {
                return Some(Err(error));
            }
        }
        Some(Ok(parts.iter().map(|part| part.len()).sum()))
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncRead for Corked<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.until != Until::Write
            && let Poll::Ready(Err(error)) = this.poll_push(cx)
        {
            return Poll::Ready(Err(error));
        }
        Pin::new(&mut this.stream).poll_read(cx, buffer)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Corked<T> {
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
        if let Some(taken) = this.keep(cx, parts) {
            return Poll::Ready(taken);
        }
        ready!(this.poll_push(cx))?;
        Pin::new(&mut this.stream).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.until != Until::Now {
            return Poll::Ready(Ok(()));
        }
        ready!(this.poll_push(cx))?;
        Pin::new(&mut this.stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_push(cx))?;
        Pin::new(&mut this.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// Keeps each write apart, takes no more than `room` octets in all, and has nothing to read.
    #[derive(Debug)]
    struct Wire {
        writes: Vec<Vec<u8>>,
        room: usize,
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
            let n = self.room.min(bytes.len());
            if n == 0 {
                return Poll::Pending;
            }
            self.room -= n;
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

    /// On which a client has sent its hello and said its Finished.
    async fn after_a_handshake() -> Corked<Wire> {
        let (writes, room) = (Vec::new(), usize::MAX);
        let mut stream = Corked::new(Wire { writes, room });
        stream.write_all(b"hel").await.unwrap();
        stream.write_all(b"lo").await.unwrap();
        stream.flush().await.unwrap();
        assert!(stream.stream.writes.is_empty(), "it may go on");
        assert_eq!(stream.read(&mut [0; 8]).await.unwrap(), 0);
        assert_eq!(stream.stream.writes, [b"hello"], "now it waits");
        stream.write_all(b"finished").await.unwrap();
        stream
    }

    #[tokio::test]
    async fn the_last_flight_goes_with_what_is_said_next() {
        let mut stream = after_a_handshake().await;
        stream.over(false);
        stream.flush().await.unwrap();
        assert_eq!(stream.read(&mut [0; 8]).await.unwrap(), 0);
        assert_eq!(stream.stream.writes.len(), 1);
        stream.write_all(b", request").await.unwrap();
        assert_eq!(stream.stream.writes[1], b"finished, request");
        stream.write_all(b"next").await.unwrap();
        assert_eq!(stream.stream.writes[2], b"next");
        assert_eq!(stream.kept.capacity(), 0);
    }

    #[tokio::test]
    async fn what_is_awaited_goes_before_anything_is_read() {
        let mut stream = after_a_handshake().await;
        stream.over(true);
        assert_eq!(stream.read(&mut [0; 8]).await.unwrap(), 0);
        assert_eq!(stream.stream.writes[1], b"finished");
    }

    #[tokio::test]
    async fn nothing_is_kept_for_ever() {
        let mut stream = after_a_handshake().await;
        stream.over(false);
        stream.shutdown().await.unwrap();
        assert_eq!(stream.stream.writes[1], b"finished");
    }

    /// An alert, that is.
    #[tokio::test]
    async fn what_says_why_it_failed_is_sent() {
        let (near, mut far) = tokio::io::duplex(64);
        let mut stream = Corked::new(near);
        stream.write_all(b"alert").await.unwrap();
        stream.failed().await;
        let mut seen = Vec::new();
        far.read_to_end(&mut seen).await.unwrap();
        assert_eq!(seen, b"alert");
    }

    /// What has been taken and does not fit goes first, and nothing more is taken before.
    #[tokio::test]
    async fn a_full_wire_changes_no_order() {
        let mut stream = after_a_handshake().await;
        stream.over(false);
        stream.stream.room = 4;
        stream.write_all(b", request").await.unwrap();
        let waiting = std::future::poll_fn(|cx| {
            let taken = Pin::new(&mut stream).poll_write(cx, b"next");
            Poll::Ready(taken.is_pending())
        });
        assert!(waiting.await);
        stream.stream.room = usize::MAX;
        stream.write_all(b", next").await.unwrap();
        stream.flush().await.unwrap();
        let all = stream.stream.writes.concat();
        assert_eq!(all, b"hellofinished, request, next");
    }
}
