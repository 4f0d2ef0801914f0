//! One conversation: what is sent on, and what is left to do when that is not all.

use std::io::{self, ErrorKind};
use std::net::TcpStream;
use std::sync::Arc;
use std::task::Waker;

use peername_sys::tcp::stream;
use peername_sys::uring::BUFFER_SIZE;
use tokio::time::Instant;

use super::{Carried, End, Rest};

pub(super) struct Talking {
    /// `None` when they have been given back.
    pub(super) sockets: Option<[TcpStream; 2]>,
    pub(super) from: [Direction; 2],
    pub(super) carried: Arc<Carried>,
    pub(super) alive: Instant,
    pub(super) is_leaving: bool,
    /// Nobody waits for it any more.
    pub(super) is_cut: bool,
    pub(super) waker: Option<Waker>,
}

#[derive(Debug, Default)]
pub(super) struct Direction {
    pub(super) rest: Rest,
    /// Whether the ring has the socket.
    pub(super) is_received: bool,
    /// Full buffers, less those that were not.
    full: u8,
}

impl Talking {
    pub(super) fn new(sockets: [TcpStream; 2]) -> Self {
        Self {
            sockets: Some(sockets),
            from: Default::default(),
            carried: Arc::default(),
            alive: Instant::now(),
            is_leaving: false,
            is_cut: false,
            waker: None,
        }
    }

    pub(super) fn has_left(&self) -> bool {
        self.is_leaving && self.from.iter().all(|from| !from.is_received)
    }

    /// Sends what came from a side; whether the conversation can go on.
    pub(super) fn pass_on(&mut self, side: usize, bytes: &[u8]) -> bool {
        let Some(sockets) = &self.sockets else {
            return false;
        };
        let across = 1 - side;
        let is_held = self.is_leaving || !self.from[side].rest.held.is_empty();
        let sent = match is_held {
            true => Ok(0),
            false => stream::send(&sockets[across], bytes),
        };
        // The kernel tells of a reset once: after that, a read finds what looks like an end.
        if let Err(error) = &sent
            && !is_ours(error)
        {
            self.from[across].rest.end = End::Dead;
        }
        let sent = sent.unwrap_or(0);
        self.carried.add(side, sent);
        let from = &mut self.from[side];
        from.rest.held.extend_from_slice(&bytes[sent..]);
        from.full = match bytes.len() == BUFFER_SIZE {
            true => from.full.saturating_add(1),
            false => from.full.saturating_sub(1),
        };
        from.rest.is_more |= from.full >= BULK;
        sent == bytes.len() && !from.rest.is_more
    }
}

/// Whether it says nothing of the peer: there is no memory for it, or it is not to be done now, or not in this way.
pub(super) fn is_ours(error: &io::Error) -> bool {
    use ErrorKind::{Interrupted, InvalidInput, OutOfMemory, Unsupported, WouldBlock};
    matches!(
        error.kind(),
        Interrupted | InvalidInput | OutOfMemory | Unsupported | WouldBlock
    )
}

/// So many more full buffers than others are bulk.
const BULK: u8 = 4;
