//! A reader of a socket that stops at the end of an HTTP head.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::tcp::OwnedReadHalf;

/// No read goes beyond an empty line: what follows the head of a response to CONNECT is the origin's, and stays in the socket.
#[derive(Debug)]
pub(super) struct HeadReader {
    socket: OwnedReadHalf,
    /// Whether the line that is being read has no byte but CR.
    is_line_empty: bool,
}

impl HeadReader {
    pub(super) fn new(socket: OwnedReadHalf) -> Self {
        Self {
            socket,
            is_line_empty: false,
        }
    }

    pub(super) fn into_inner(self) -> OwnedReadHalf {
        self.socket
    }

    /// The number of these bytes to the end of the head, or all of them; and whether the line is empty after them.
    fn find_end(&self, bytes: &[u8]) -> (usize, bool) {
        let mut is_line_empty = self.is_line_empty;
        for (index, byte) in bytes.iter().enumerate() {
            match byte {
                b'\n' if is_line_empty => return (index + 1, false),
                b'\n' => is_line_empty = true,
                b'\r' => {}
                _ => is_line_empty = false,
            }
        }
        (bytes.len(), is_line_empty)
    }
}

impl AsyncRead for HeadReader {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut peeked = [0; PEEK_SIZE];
        let room = buffer.remaining().min(PEEK_SIZE);
        let mut peek = ReadBuf::new(peeked.get_mut(..room).unwrap_or_default());
        ready!(self.socket.poll_peek(cx, &mut peek))?;
        let (len, is_line_empty) = self.find_end(peek.filled());
        let mut head = buffer.take(len);
        // Pending if the task has used up its budget (tokio::task::coop), although there are bytes: they are peeked again.
        ready!(Pin::new(&mut self.socket).poll_read(cx, &mut head))?;
        self.is_line_empty = is_line_empty;
        let read = head.filled().len();
        buffer.put_slice(peek.filled().get(..read).unwrap_or_default());
        Poll::Ready(Ok(()))
    }
}

/// Bytes that are peeked at once: mostly more than the head of a response to CONNECT has.
const PEEK_SIZE: usize = 4096;
