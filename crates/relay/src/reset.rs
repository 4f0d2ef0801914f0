//! After an RST: the other side gets what was already received, then its own RST.

use std::future::poll_fn;
use std::time::Duration;

use peername_sys::socket::upstream::is_connected;
use peername_sys::tcp::stream;
use tokio::time::{Instant, sleep, timeout};

use crate::Side;
use crate::pair::Running;

/// Delivers what `dead` had sent to the other side and waits until that is acknowledged. A side that
/// takes nothing for `patience` is given up. Dropping `running` then resets it.
///
/// The wait matters: closing with RST throws away what is still in the send buffer.
pub(crate) async fn deliver(running: &mut Running<'_>, dead: Side, patience: Duration) {
    salvage(running, dead, patience).await;
    if let Some(survivor) = running.socket(dead.other()) {
        await_acknowledged(survivor, patience).await;
    }
}

async fn salvage(running: &mut Running<'_>, dead: Side, patience: Duration) {
    loop {
        let moved = running.moved();
        let done = timeout(patience, poll_fn(|cx| running.poll_salvage(dead, cx))).await;
        if done.is_ok() || running.moved() == moved {
            return;
        }
    }
}

/// No event tells that the send queue has emptied, so it is looked at, ever less often.
async fn await_acknowledged(socket: &tokio::net::TcpStream, patience: Duration) {
    let mut pause = Duration::from_millis(1);
    let mut left = stream::send_queue_len(socket).unwrap_or(0);
    let mut deadline = Instant::now() + patience;
    // Unsent bytes stay counted when the survivor dies too.
    while left > 0 && is_connected(socket) && Instant::now() < deadline {
        sleep(pause).await;
        pause = (pause * 2).min(Duration::from_millis(50));
        let now = stream::send_queue_len(socket).unwrap_or(0);
        if now < left {
            deadline = Instant::now() + patience;
        }
        left = now;
    }
}
