//! A stream, with what was read off it before anybody knew what it is.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// Reads give what is ahead first, then what the stream has.
#[derive(Debug)]
pub(crate) struct Reading<T> {
    stream: T,
    /// Read already, and not yet given to a reader.
    ahead: Vec<u8>,
}

/// A client's socket.
pub(crate) type Wire = Reading<TcpStream>;

impl<T: AsyncRead + Unpin> Reading<T> {
    /// With what was read off it too soon.
    pub(crate) fn new(stream: T, ahead: impl Into<Vec<u8>>) -> Self {
        let ahead = ahead.into();
        Self { stream, ahead }
    }

    /// What was read and nobody has taken yet.
    pub(crate) fn ahead(&self) -> &[u8] {
        &self.ahead
    }

    /// Waits for more than there is ahead; 0 is the end of the stream. May be dropped while it waits.
    pub(crate) async fn more(&mut self) -> io::Result<usize> {
        self.ahead.reserve(READ);
        self.stream.read_buf(&mut self.ahead).await
    }

    /// Both, apart.
    pub(crate) fn into_parts(self) -> (T, Vec<u8>) {
        (self.stream, self.ahead)
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Reading<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.ahead.is_empty() {
            return Pin::new(&mut this.stream).poll_read(cx, buffer);
        }
        let n = this.ahead.len().min(buffer.remaining());
        buffer.put_slice(this.ahead.get(..n).unwrap_or_default());
        this.ahead.drain(..n);
        if this.ahead.is_empty() {
            this.ahead = Vec::new();
        }
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Reading<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// A ClientHello with a post-quantum key share is some 1700 octets.
const READ: usize = 4096;
