//! A fair queue for hashing passwords, with a bound for each client.
//!
//! One password of a client is hashed at a time, and its other passwords wait in a line of the client's own. So a new client
//! waits for one hash of each client before it, however long their lines are.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use peername_server::access::client_limit::client_prefix;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Permits for hashing a password.
#[derive(Debug)]
pub(super) struct HashQueue {
    permits: Arc<Semaphore>,
    lines: Arc<Mutex<Lines>>,
}

type Lines = HashMap<IpAddr, Line>;

/// The passwords of one client that wait or are being hashed.
#[derive(Debug)]
struct Line {
    /// Has one permit, for the password at the head of the line.
    turn: Arc<Semaphore>,
    len: usize,
}

/// A permit to hash one password.
#[derive(Debug)]
pub(super) struct HashPermit {
    // Fields are dropped in this order: the client's next password then queues behind those of other clients.
    _permit: OwnedSemaphorePermit,
    _turn: OwnedSemaphorePermit,
    _position: Position,
}

/// A position in the line of a client.
#[derive(Debug)]
struct Position {
    lines: Arc<Mutex<Lines>>,
    client: IpAddr,
}

impl HashQueue {
    pub(super) fn new() -> Self {
        Self {
            permits: Arc::new(Semaphore::new(MAX_HASHING)),
            lines: Arc::default(),
        }
    }

    /// Acquires a permit in this client's turn; `None` if [`MAX_WAITING`] of its passwords wait already. Cancel-safe.
    pub(super) async fn acquire(&self, client: IpAddr) -> Option<HashPermit> {
        let (position, turn) = self.enter(client_prefix(client))?;
        // Neither semaphore is ever closed.
        let turn = turn.acquire_owned().await.ok()?;
        let permit = Arc::clone(&self.permits).acquire_owned().await.ok()?;
        Some(HashPermit {
            _permit: permit,
            _turn: turn,
            _position: position,
        })
    }

    /// Enters the line of a client, unless it is full.
    fn enter(&self, client: IpAddr) -> Option<(Position, Arc<Semaphore>)> {
        let mut lines = self.lines.lock();
        let line = lines.entry(client).or_insert_with(|| Line {
            turn: Arc::new(Semaphore::new(1)),
            len: 0,
        });
        if line.len > MAX_WAITING {
            return None;
        }
        line.len += 1;
        let position = Position {
            lines: Arc::clone(&self.lines),
            client,
        };
        Some((position, Arc::clone(&line.turn)))
    }
}

impl Drop for Position {
    fn drop(&mut self) {
        let mut lines = self.lines.lock();
        if let Some(line) = lines.get_mut(&self.client) {
            line.len -= 1;
            if line.len == 0 {
                lines.remove(&self.client);
            }
        }
    }
}

/// The maximum number of passwords that are hashed at a time, so that a flood of wrong passwords takes two threads only.
const MAX_HASHING: usize = 2;
/// The maximum number of a client's passwords that wait while another one is hashed.
const MAX_WAITING: usize = 32;

#[cfg(test)]
mod tests {
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
        waiting.iter().for_each(tokio::task::JoinHandle::abort);
        for task in waiting {
            drop(task.await);
        }
        drop(next);
        assert!(queue.lines.lock().is_empty());
    }
}
