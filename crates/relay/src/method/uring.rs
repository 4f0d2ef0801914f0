//! io_uring sessions: small messages are received by one ring for all connections of a thread.
//!
//! A connection enters when it has carried nothing but small messages for a while. Any bulk read, EOF, error or short
//! write ends the session. The connection then returns to the runtime, with the bytes that were received and not sent.
//! So this module does not implement how connections end.

mod reactor;
pub(crate) mod session;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use peername_sys::uring::MultishotReceiver;
use tokio::time::Instant;

use self::session::{EndedSession, set_reset_on_close};
use crate::Pair;
use crate::stats::RelayStats;

/// Checks that io_uring is available, for callers that require it.
///
/// # Errors
///
/// Those of [`MultishotReceiver::new`].
pub fn check_uring() -> peername_sys::Result<()> {
    // Tried once per process: the buffers of a ring are never freed.
    static WAS_OPENED: AtomicBool = AtomicBool::new(false);
    if !WAS_OPENED.load(Ordering::Relaxed) {
        MultishotReceiver::new()?;
        WAS_OPENED.store(true, Ordering::Relaxed);
    }
    Ok(())
}

/// A connection in an io_uring session. If dropped, both sides are reset.
#[derive(Debug)]
pub(crate) struct UringSession {
    key: usize,
}

impl UringSession {
    /// Opens this thread's ring unless that was tried before. Returns whether there is one.
    pub(crate) fn ensure_ring() -> bool {
        reactor::ensure_running()
    }

    /// Starts a session. Deregisters the two sockets from the runtime, which would otherwise wake for them. `None` if
    /// they could not be deregistered, or there is no ring; the sockets are reset then. `stats` counts what the session moves.
    pub(crate) fn start(pair: Pair, stats: Arc<RelayStats>) -> Option<Self> {
        set_reset_on_close(&pair.downstream);
        set_reset_on_close(&pair.upstream);
        let sockets = [pair.downstream.into_std(), pair.upstream.into_std()];
        let [Ok(downstream), Ok(upstream)] = sockets else {
            return None;
        };
        let sockets = [downstream, upstream];
        let key = reactor::with(|reactor| reactor.start_session(sockets, stats))?;
        Some(Self { key })
    }

    /// Ready when the session has ended.
    pub(crate) fn poll_ended(&self, cx: &Context<'_>) -> Poll<EndedSession> {
        reactor::with(|reactor| reactor.poll_ended(self.key, cx))
            .unwrap_or_else(|| Poll::Ready(EndedSession::default()))
    }

    /// The time of the last completion.
    pub(crate) fn last_activity(&self) -> Option<Instant> {
        reactor::with(|reactor| reactor.last_activity(self.key)).flatten()
    }
}

impl Drop for UringSession {
    fn drop(&mut self) {
        reactor::with(|reactor| reactor.abandon(self.key));
    }
}
