//! Conversations: small messages, received by one ring for all connections of a thread.
//!
//! A connection joins when it has carried nothing but small messages for a while, and leaves with the first thing that
//! is out of the ordinary: bulk, an end, a side that takes nothing. Then it goes on where it came from, with what was
//! received and not sent. So nothing here knows how connections end.

mod reactor;
mod session;

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};

use peername_sys::tcp::stream;
use peername_sys::uring::MultishotReceiver;
use tokio::time::Instant;

use crate::Pair;

/// Whether a ring is to be had: asked for by those who want no other way.
pub fn is_possible() -> peername_sys::Result<()> {
    // Its buffers are never freed, so one trial has to do.
    static WAS_MADE: AtomicBool = AtomicBool::new(false);
    if !WAS_MADE.load(Ordering::Relaxed) {
        MultishotReceiver::new()?;
        WAS_MADE.store(true, Ordering::Relaxed);
    }
    Ok(())
}

/// A connection that is in conversation. Dropped, it is cut: both sides are reset.
#[derive(Debug)]
pub(crate) struct Talk {
    key: usize,
    carried: Arc<Carried>,
}

/// What was carried in a conversation, by the side that it came from: downstream, upstream.
#[derive(Debug, Default)]
pub(crate) struct Carried {
    bytes: [AtomicU64; 2],
}

impl Carried {
    fn add(&self, side: usize, bytes: usize) {
        if let Some(n) = self.bytes.get(side) {
            // Only the thread of the conversation adds.
            n.store(n.load(Ordering::Relaxed) + bytes as u64, Ordering::Relaxed);
        }
    }
}

/// How a conversation was left.
#[derive(Debug, Default)]
pub(crate) struct Left {
    /// `None` when the runtime could not have them back, and they were reset.
    pub(crate) pair: Option<Pair>,
    /// What came from each of them.
    pub(crate) from: [Rest; 2],
}

/// What is left to do for what came from one side.
#[derive(Debug, Default)]
pub(crate) struct Rest {
    /// To be sent before anything else.
    pub(crate) held: Vec<u8>,
    pub(crate) end: End,
    /// Whether it is more than messages.
    pub(crate) is_more: bool,
}

/// Whether more can come from a side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum End {
    #[default]
    Open,
    Finished,
    Dead,
}

impl Talk {
    /// Whether this thread has a ring, which is made if there was none.
    pub(crate) fn has_ring() -> bool {
        reactor::opens()
    }

    /// Lets two sockets converse, which leave the runtime: it is not to be woken by them. `None` when they could not be
    /// taken out, or there is no ring; they are reset then.
    pub(crate) fn join(pair: Pair) -> Option<Self> {
        cut_short(&pair.downstream);
        cut_short(&pair.upstream);
        let sockets = [pair.downstream.into_std(), pair.upstream.into_std()];
        let [Ok(downstream), Ok(upstream)] = sockets else {
            return None;
        };
        reactor::with(|room| room.join([downstream, upstream]))
    }

    /// Ready when the conversation has been left.
    pub(crate) fn poll_left(&self, cx: &Context<'_>) -> Poll<Left> {
        reactor::with(|room| room.poll_left(self.key, cx))
            .unwrap_or_else(|| Poll::Ready(Left::default()))
    }

    /// What came from downstream and from upstream, and was sent to the other.
    pub(crate) fn carried(&self) -> [u64; 2] {
        self.carried
            .bytes
            .each_ref()
            .map(|n| n.load(Ordering::Relaxed))
    }

    /// When it last carried anything.
    pub(crate) fn alive(&self) -> Option<Instant> {
        reactor::with(|room| room.alive(self.key)).flatten()
    }
}

/// What is closed while it is not the runtime's is cut short. Fails only on a socket that is closed already, and then
/// there is nobody to tell.
fn cut_short(socket: impl AsFd) {
    let _ = stream::reset_on_close(socket);
}

impl Drop for Talk {
    fn drop(&mut self) {
        reactor::with(|room| room.cut(self.key));
    }
}
