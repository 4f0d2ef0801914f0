//! A client's socket, which is reset if an operator ends its connection, or if a response without a length breaks off.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll};

use peername_server::workers::connections::ConnectionEntry;
use peername_sys::tcp::stream::reset_on_close;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::prefixed::PrefixedStream;

/// Closes with RST once [`ConnectionEntry::end_reason`] or [`CutResponse`] is set. After a FIN, a client would take an
/// incomplete response for a complete one, if only the end of the connection ends the response.
#[derive(Debug)]
pub(crate) struct ClientSocket {
    /// `None` once [`ClientSocket::into_stream`] has taken it.
    stream: Option<TcpStream>,
    entry: Arc<ConnectionEntry>,
    cut: CutResponse,
}

/// A client's socket, with what was read from it.
pub(crate) type ClientStream = PrefixedStream<ClientSocket>;

/// Whether a response that only the end of the connection ends (HTTP/1.0) was cut. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct CutResponse(Arc<AtomicBool>);

impl CutResponse {
    pub(crate) fn set(&self) {
        self.0.store(true, Relaxed);
    }

    fn is_set(&self) -> bool {
        self.0.load(Relaxed)
    }
}

impl ClientSocket {
    pub(crate) fn new(stream: TcpStream, entry: &Arc<ConnectionEntry>, cut: &CutResponse) -> Self {
        Self {
            stream: Some(stream),
            entry: Arc::clone(entry),
            cut: cut.clone(),
        }
    }

    /// Takes the socket. Its new owner has to reset it where that is due.
    pub(crate) fn into_stream(mut self) -> Option<TcpStream> {
        self.stream.take()
    }

    /// Closes with RST.
    pub(crate) fn reset(self) {
        self.reset_on_close();
    }

    fn reset_on_close(&self) {
        if let Some(stream) = &self.stream {
            // Setting the option can't fail: the socket is open.
            let _ = reset_on_close(stream);
        }
    }

    fn stream(&mut self) -> io::Result<Pin<&mut TcpStream>> {
        self.stream
            .as_mut()
            .map(Pin::new)
            .ok_or_else(|| io::ErrorKind::NotConnected.into())
    }
}

impl Drop for ClientSocket {
    fn drop(&mut self) {
        if self.entry.end_reason().is_some() || self.cut.is_set() {
            self.reset_on_close();
        }
    }
}

impl AsyncRead for ClientSocket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.stream()?.poll_read(cx, buffer)
    }
}

impl AsyncWrite for ClientSocket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.stream()?.poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.stream()?.poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream()?.poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream()?.poll_shutdown(cx)
    }
}
