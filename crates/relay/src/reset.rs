//! Forwarding an RST: the surviving side first gets what was already received, then RST.

use std::future::poll_fn;
use std::time::Duration;

use peername_sys::socket::upstream::is_connected;
use peername_sys::tcp::stream;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

use crate::Side;
use crate::pair::PairRelay;

/// Delivers to the surviving side what `dead` had sent and waits until it is acknowledged. A survivor that
/// accepts nothing for `flush_timeout` is abandoned. Dropping `relay` then resets it.
///
/// The wait matters: closing with RST discards what is still in the send buffer.
pub(crate) async fn deliver(relay: &mut PairRelay, dead: Side, flush_timeout: Duration) {
    drain(relay, dead, flush_timeout).await;
    wait_acknowledged(relay.socket(dead.other()), flush_timeout).await;
}

async fn drain(relay: &mut PairRelay, dead: Side, flush_timeout: Duration) {
    loop {
        let moved = relay.moved();
        let done = timeout(flush_timeout, poll_fn(|cx| relay.poll_drain(dead, cx))).await;
        if done.is_ok() || relay.moved() == moved {
            return;
        }
    }
}

/// Polls the length of the send queue (SIOCOUTQ), with exponential backoff: no event reports that it is empty.
async fn wait_acknowledged(socket: &TcpStream, flush_timeout: Duration) {
    let mut pause = Duration::from_millis(1);
    let mut queued = stream::send_queue_len(socket).unwrap_or(0);
    let mut deadline = Instant::now() + flush_timeout;
    // The queue of a survivor that is reset, too, never gets empty.
    while queued > 0 && is_connected(socket) && Instant::now() < deadline {
        sleep(pause).await;
        pause = (pause * 2).min(MAX_PAUSE);
        let still_queued = stream::send_queue_len(socket).unwrap_or(0);
        if still_queued < queued {
            deadline = Instant::now() + flush_timeout;
        }
        queued = still_queued;
    }
}

/// Polls are at most this far apart: a survivor learns of the reset that much later.
const MAX_PAUSE: Duration = Duration::from_millis(50);
