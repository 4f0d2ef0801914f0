//! Forwarding an RST: the surviving side first gets what was already received, then RST.

use std::future::poll_fn;
use std::time::Duration;

use peername_sys::socket::upstream::is_connected;
use peername_sys::tcp::stream;
use tokio::time::{Instant, sleep, timeout};

use crate::Side;
use crate::pair::PairRelay;

/// Delivers to the surviving side what `dead` had sent and waits until it is acknowledged. A survivor that
/// accepts nothing for `timeout_after` is abandoned. Dropping `relay` then resets it.
///
/// The wait matters: closing with RST discards what is still in the send buffer.
pub(crate) async fn deliver(relay: &mut PairRelay, dead: Side, timeout_after: Duration) {
    drain(relay, dead, timeout_after).await;
    wait_acknowledged(relay.socket(dead.other()), timeout_after).await;
}

async fn drain(relay: &mut PairRelay, dead: Side, timeout_after: Duration) {
    loop {
        let moved = relay.moved();
        let done = timeout(timeout_after, poll_fn(|cx| relay.poll_drain(dead, cx))).await;
        if done.is_ok() || relay.moved() == moved {
            return;
        }
    }
}

/// Polls the length of the send queue (SIOCOUTQ), with exponential backoff: no event reports that it is empty.
async fn wait_acknowledged(socket: &tokio::net::TcpStream, timeout_after: Duration) {
    let mut pause = Duration::from_millis(1);
    let mut queued = stream::send_queue_len(socket).unwrap_or(0);
    let mut deadline = Instant::now() + timeout_after;
    // Unacknowledged bytes stay counted when the survivor is reset, too.
    while queued > 0 && is_connected(socket) && Instant::now() < deadline {
        sleep(pause).await;
        pause = (pause * 2).min(Duration::from_millis(50));
        let now = stream::send_queue_len(socket).unwrap_or(0);
        if now < queued {
            deadline = Instant::now() + timeout_after;
        }
        queued = now;
    }
}
