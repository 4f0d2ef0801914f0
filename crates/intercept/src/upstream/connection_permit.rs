//! Permits under the connection cap, by which a connection is counted and can be closed.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Waker};

use parking_lot::Mutex;
use peername_server::access::client_limit::{ClientLimit, ClientPermit};

/// A permit for one connection. It counts against the cap until it is dropped, with the connection's socket.
#[derive(Debug)]
pub(super) struct ConnectionPermit {
    connections: Arc<AtomicUsize>,
    shares: Arc<ClientLimit>,
    /// Counts the connection against the share of the client that uses it; `None` while it is idle.
    share: Mutex<Option<ClientPermit>>,
    is_revoked: AtomicBool,
    /// The task that waits for the socket.
    waker: Mutex<Option<Waker>>,
}

impl ConnectionPermit {
    /// Issues a permit for a connection of a client with this share, whatever the cap is. Returns the number of permits before.
    pub(super) fn issue(
        connections: &Arc<AtomicUsize>,
        shares: &Arc<ClientLimit>,
        share: ClientPermit,
    ) -> (Self, usize) {
        let permit = Self {
            connections: Arc::clone(connections),
            shares: Arc::clone(shares),
            share: Mutex::new(Some(share)),
            is_revoked: AtomicBool::new(false),
            waker: Mutex::default(),
        };
        let before = connections.fetch_add(1, Relaxed);
        (permit, before)
    }

    /// Counts an idle connection against the share of this client, which uses it from now on. Returns `false` if the client
    /// has its share already.
    pub(super) fn lease_to(&self, client: IpAddr) -> bool {
        let share = self.shares.try_acquire(client);
        let is_granted = share.is_some();
        *self.share.lock() = share;
        is_granted
    }

    /// Counts the connection against no client's share any more, because it is idle.
    pub(super) fn release(&self) {
        *self.share.lock() = None;
    }

    /// Closes the connection, whatever it does: its socket fails as soon as it would wait.
    pub(super) fn revoke(&self) {
        self.is_revoked.store(true, Relaxed);
        if let Some(waker) = self.waker.lock().take() {
            waker.wake();
        }
    }

    /// Whether the permit is revoked. If not, the task that asks is woken when it is.
    pub(super) fn poll_revoked(&self, cx: &Context<'_>) -> bool {
        let mut waker = self.waker.lock();
        if !waker
            .as_ref()
            .is_some_and(|waker| waker.will_wake(cx.waker()))
        {
            *waker = Some(cx.waker().clone());
        }
        drop(waker);
        // Read after the lock: a waker that `revoke` has not found is stored after the flag was set.
        self.is_revoked.load(Relaxed)
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.connections.fetch_sub(1, Relaxed);
    }
}
