//! The state of one io_uring session, and what remains to be done when it ends.

use std::io::{self, ErrorKind};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::task::Waker;

use peername_sys::tcp::stream;
use peername_sys::uring::BUFFER_SIZE;
use tokio::time::Instant;

use crate::Pair;
use crate::stats::RelayStats;

/// A session that has ended.
#[derive(Debug, Default)]
pub(crate) struct EndedSession {
    /// The sockets; `None` when the runtime could not register them again, and they were reset.
    pub(crate) pair: Option<Pair>,
    /// What remains of each source.
    pub(crate) from: [Remainder; 2],
}

/// What remains to be done for one source.
#[derive(Debug, Default)]
pub(crate) struct Remainder {
    /// Received bytes, to be sent before anything else.
    pub(crate) unsent: Vec<u8>,
    pub(crate) end: SourceEnd,
    /// Whether it carried bulk.
    pub(crate) has_bulk: bool,
}

/// Whether more can come from a source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum SourceEnd {
    #[default]
    Open,
    Finished,
    Dead,
}

pub(super) struct SessionState {
    /// `None` once they have been returned.
    pub(super) sockets: Option<[TcpStream; 2]>,
    pub(super) from: [Source; 2],
    stats: Arc<RelayStats>,
    pub(super) last_activity: Instant,
    pub(super) is_ending: bool,
    /// Whether its [`UringSession`](super::UringSession) was dropped.
    pub(super) is_abandoned: bool,
    pub(super) waker: Option<Waker>,
}

/// One side as a source of bytes.
#[derive(Debug, Default)]
pub(super) struct Source {
    pub(super) rest: Remainder,
    /// Whether a receive request of this socket is in flight.
    pub(super) is_armed: bool,
    /// Full buffers, minus those that were not full.
    full_buffers: u8,
}

impl SessionState {
    pub(super) fn new(sockets: [TcpStream; 2], stats: Arc<RelayStats>) -> Self {
        Self {
            sockets: Some(sockets),
            from: Default::default(),
            stats,
            last_activity: Instant::now(),
            is_ending: false,
            is_abandoned: false,
            waker: None,
        }
    }

    /// Whether the session is ending and no request is in flight any more.
    pub(super) fn has_ended(&self) -> bool {
        self.is_ending && self.from.iter().all(|from| !from.is_armed)
    }

    /// Forwards bytes from one side. Returns whether the session can go on: a short write or bulk ends it.
    pub(super) fn forward(&mut self, side: usize, bytes: &[u8], now: u64) -> bool {
        let Some(sockets) = &self.sockets else {
            return false;
        };
        let across = 1 - side;
        let is_buffering = self.is_ending || !self.from[side].rest.unsent.is_empty();
        let sent = match is_buffering {
            true => Ok(0),
            false => stream::send(&sockets[across], bytes),
        };
        // The kernel reports a reset once: after that, a read returns what looks like EOF.
        if let Err(error) = &sent
            && !is_local_error(error)
        {
            self.from[across].rest.end = SourceEnd::Dead;
        }
        let sent = sent.unwrap_or(0);
        self.stats.add_from(side, sent, now);
        let from = &mut self.from[side];
        from.rest.unsent.extend_from_slice(&bytes[sent..]);
        from.full_buffers = match bytes.len() == BUFFER_SIZE {
            true => from.full_buffers.saturating_add(1),
            false => from.full_buffers.saturating_sub(1),
        };
        from.rest.has_bulk |= from.full_buffers >= BULK_FULL_BUFFERS;
        sent == bytes.len() && !from.rest.has_bulk
    }
}

/// Whether an error is local and does not concern the peer: no memory, not now, or not supported.
pub(super) fn is_local_error(error: &io::Error) -> bool {
    use ErrorKind::{Interrupted, InvalidInput, OutOfMemory, Unsupported, WouldBlock};
    matches!(
        error.kind(),
        Interrupted | InvalidInput | OutOfMemory | Unsupported | WouldBlock
    )
}

/// Makes the coming close send RST: a socket that is closed while it is not registered with the runtime was cut short.
/// Fails only on a socket that is closed already, which needs no reset.
pub(super) fn set_reset_on_close(socket: impl AsFd) {
    let _ = stream::reset_on_close(socket);
}

/// The surplus of full buffers over others that counts as bulk.
const BULK_FULL_BUFFERS: u8 = 4;
