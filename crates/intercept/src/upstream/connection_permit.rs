//! Permits under the connection cap.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use parking_lot::Mutex;
use peername_server::access::client_limit::{ClientLimit, ClientPermit};

/// A permit for one connection. It counts against the cap until it is dropped.
#[derive(Debug)]
pub(crate) struct ConnectionPermit {
    connections: Arc<AtomicUsize>,
    shares: Arc<ClientLimit>,
    /// Counts the connection against the share of the client that uses it; `None` while it is idle.
    share: Mutex<Option<ClientPermit>>,
}

impl ConnectionPermit {
    /// Counts a connection that a client with this share uses, and returns how many there were before.
    pub(super) fn count(
        connections: &Arc<AtomicUsize>,
        shares: &Arc<ClientLimit>,
        share: ClientPermit,
    ) -> (Self, usize) {
        let permit = Self {
            connections: Arc::clone(connections),
            shares: Arc::clone(shares),
            share: Mutex::new(Some(share)),
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
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.connections.fetch_sub(1, Relaxed);
    }
}
