//! Reading of a socket that stops at the end of an HTTP head.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::tcp::OwnedReadHalf;

/// No read goes beyond an empty line: what follows the head of a response to CONNECT is the origin's, and stays in the socket.
#[derive(Debug)]
pub(crate) struct HeadReader {
    socket: OwnedReadHalf,
    /// Whether the line that is being read has no byte but CR.
    is_line_empty: bool,
}

impl HeadReader {
    pub(crate) fn new(socket: OwnedReadHalf) -> Self {
        Self {
            socket,
            is_line_empty: false,
        }
    }

    pub(crate) fn into_inner(self) -> OwnedReadHalf {
        self.socket
    }

    /// The number of these bytes to the end of the head, or all of them.
    fn take_head(&mut self, bytes: &[u8]) -> usize {
        for (index, byte) in bytes.iter().enumerate() {
            let ends_head = *byte == b'\n' && self.is_line_empty;
            self.is_line_empty = match byte {
                b'\n' => !ends_head,
                b'\r' => self.is_line_empty,
                _ => false,
            };
            if ends_head {
                return index + 1;
            }
        }
        bytes.len()
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
        let len = self.take_head(peek.filled());
        let mut head = buffer.take(len);
        ready!(Pin::new(&mut self.socket).poll_read(cx, &mut head))?;
        let read = head.filled().len();
        buffer.put_slice(peek.filled().get(..read).unwrap_or_default());
        Poll::Ready(Ok(()))
    }
}

/// More than a response to CONNECT has, mostly.
const PEEK_SIZE: usize = 4096;
