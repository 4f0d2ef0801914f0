//! A fair queue for hashing passwords, with a bound for each client.
//!
//! One password of a client is hashed at a time, and its other passwords wait in a line of the client's own. So a new client
//! waits for one hash of each client before it, however long their lines are.

use std::net::IpAddr;

use peername_server::access::client_semaphore::{ClientSemaphores, FairPermit, FairSemaphore};
use tokio::sync::OwnedSemaphorePermit;

/// Permits for hashing a password.
#[derive(Debug)]
pub(super) struct HashQueue {
    permits: FairSemaphore,
    /// The positions in each client's line: one for the password that is hashed, the others for those that wait.
    positions: ClientSemaphores,
}

/// A permit to hash one password.
#[derive(Debug)]
pub(super) struct HashPermit {
    _permit: FairPermit,
    _position: OwnedSemaphorePermit,
}

impl HashQueue {
    pub(super) fn new() -> Self {
        Self {
            permits: FairSemaphore::with_share(MAX_HASHING, 1),
            positions: ClientSemaphores::new(MAX_WAITING + 1),
        }
    }

    /// Acquires a permit in this client's turn; `None` if [`MAX_WAITING`] of its passwords wait already. Cancel-safe.
    pub(super) async fn acquire(&self, client: IpAddr) -> Option<HashPermit> {
        let position = self.positions.get(client).try_acquire_owned().ok()?;
        Some(HashPermit {
            _permit: self.permits.acquire(client).await?,
            _position: position,
        })
    }
}

/// The maximum number of passwords that are hashed at a time, so that a flood of wrong passwords takes two threads only.
const MAX_HASHING: usize = 2;
/// The maximum number of a client's passwords that wait while another one is hashed.
const MAX_WAITING: usize = 32;

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[tokio::test]
    async fn client_with_a_long_line_delays_others_by_one_hash() {
        let queue = Arc::new(HashQueue::new());
        let client = |last| IpAddr::from([192, 0, 2, last]);
        let first = queue.acquire(client(1)).await.expect("a permit");
        let spawn = |last| {
            let queue = Arc::clone(&queue);
            tokio::spawn(async move { queue.acquire(client(last)).await })
        };
        let mut waiting: Vec<_> = (0..MAX_WAITING).map(|_| spawn(1)).collect();
        tokio::task::yield_now().await;
        assert!(queue.acquire(client(1)).await.is_none());
        // The line of the first client uses one permit of the two.
        let second = queue.acquire(client(2)).await.expect("a permit");
        let third = spawn(3);
        tokio::task::yield_now().await;
        drop(first);
        let third = third.await.expect("no panic").expect("a permit");
        drop((second, third));
        let next = waiting.remove(0).await.expect("no panic");
        assert!(next.is_some());
    }
}
