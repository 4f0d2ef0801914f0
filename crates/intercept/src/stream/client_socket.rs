//! A client's socket, which is reset if its connection is ended from outside, or in the middle of a response without a length.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll};

use peername_server::workers::connections::ConnectionEntry;
use peername_sys::tcp::stream::reset_on_close;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// Closes with RST once [`ConnectionEntry::end_reason`] or [`CutResponse`] is set. After a FIN a client would take what it has
/// of a response for all of it, if the end of the connection is the only end that the response has.
#[derive(Debug)]
pub(crate) struct ClientSocket {
    /// `None` once it is given to a relay.
    stream: Option<TcpStream>,
    entry: Arc<ConnectionEntry>,
    cut: CutResponse,
}

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

    /// Gives the socket away: its new owner has to reset it.
    pub(crate) fn into_stream(mut self) -> Option<TcpStream> {
        self.stream.take()
    }

    /// Closes with RST.
    pub(crate) fn reset(self) {
        self.reset_on_close();
    }

    fn reset_on_close(&self) {
        if let Some(stream) = &self.stream {
            // It can't fail: the socket is open.
            let _ = reset_on_close(stream);
        }
    }

    fn stream(&mut self) -> io::Result<Pin<&mut TcpStream>> {
        let stream = self.stream.as_mut().map(Pin::new);
        stream.ok_or_else(|| io::ErrorKind::NotConnected.into())
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
