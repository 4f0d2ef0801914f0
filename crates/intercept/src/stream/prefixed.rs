//! A stream with a prefix: bytes that were read from it before it was known what reads them.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};

/// Reads return the prefix first, then what the stream has.
#[derive(Debug)]
pub(crate) struct PrefixedStream<T> {
    stream: T,
    /// Bytes that were read and not yet returned to a reader.
    prefix: Vec<u8>,
}

impl<T: AsyncRead + Unpin> PrefixedStream<T> {
    pub(crate) fn new(stream: T, prefix: impl Into<Vec<u8>>) -> Self {
        let prefix = prefix.into();
        Self { stream, prefix }
    }

    /// The bytes that were read and not yet returned to a reader.
    pub(crate) fn prefix(&self) -> &[u8] {
        &self.prefix
    }

    /// Reads more into the prefix, and returns the number of bytes: 0 at the end of the stream. Cancel-safe.
    pub(crate) async fn read_more(&mut self) -> io::Result<usize> {
        self.prefix.reserve(READ_SIZE);
        self.stream.read_buf(&mut self.prefix).await
    }

    /// Takes stream and prefix apart.
    pub(crate) fn into_parts(self) -> (T, Vec<u8>) {
        (self.stream, self.prefix)
    }
}

impl<T> PrefixedStream<PrefixedStream<T>> {
    /// Joins the two prefixes.
    pub(crate) fn flatten(self) -> PrefixedStream<T> {
        let mut prefix = self.prefix;
        prefix.extend(self.stream.prefix);
        PrefixedStream {
            stream: self.stream.stream,
            prefix,
        }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for PrefixedStream<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.prefix.is_empty() {
            return Pin::new(&mut this.stream).poll_read(cx, buffer);
        }
        let n = this.prefix.len().min(buffer.remaining());
        buffer.put_slice(this.prefix.get(..n).unwrap_or_default());
        this.prefix.drain(..n);
        if this.prefix.is_empty() {
            this.prefix = Vec::new();
        }
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for PrefixedStream<T> {
    delegate_writes!(stream);
    delegate_polls!(stream, poll_flush, poll_shutdown);
}

/// Bytes of a read: enough for a ClientHello with a post-quantum key share, which has some 1700.
const READ_SIZE: usize = 4096;
