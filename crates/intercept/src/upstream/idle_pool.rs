//! The idle pool: connections to origins that are not in use, kept for the next request to the same origin.
//!
//! Each worker has a pool, so that no connection crosses threads. The [`PoolKey`] decides which requests may share a
//! connection: it holds whatever makes a difference to the origin.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::connection::Connection;
use crate::host::HostPort;
use crate::request::id::Id;

/// The requests that a connection may be used for. The dialer makes it of an allowed request or tunnel.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct PoolKey {
    /// Of the configuration and its access lists: others may verify or reach origins in another way, or not at all.
    pub(super) generation: u64,
    pub(super) to: HostPort,
    pub(super) tls: bool,
    /// Whether HTTP/2 is offered.
    pub(super) http2: bool,
    /// The original destination of a redirected connection: the client chose the address.
    pub(super) via: Option<IpAddr>,
    /// The client that the PROXY header names, if one is sent. Two clients then never share a connection.
    pub(super) announced_client: Option<SocketAddr>,
    /// The only client connection that may use it, because it may be authenticated as one user.
    pub(super) private_to: Option<Id>,
}

impl PoolKey {
    /// The same key, for this client connection only.
    pub(super) fn private_to(&self, client: Id) -> Self {
        Self {
            private_to: Some(client),
            ..self.clone()
        }
    }
}

/// Idle connections of one worker.
#[derive(Debug, Default)]
pub(crate) struct IdlePool(Mutex<Idle>);

#[derive(Debug, Default)]
struct Idle {
    /// Last in, first out, so that surplus connections expire.
    by_key: HashMap<PoolKey, Vec<(u64, Connection)>>,
    /// Each under its sequence number, with the time of its last use.
    by_age: BTreeMap<u64, (Instant, PoolKey)>,
    next: u64,
}

impl IdlePool {
    /// Takes a connection that can take a request now.
    pub(super) fn take(&self, key: &PoolKey) -> Option<Connection> {
        let mut idle = self.0.lock();
        let Idle { by_key, by_age, .. } = &mut *idle;
        let kept = by_key.get_mut(key)?;
        remove_closed(kept, by_age);
        // A connection is left for later if its driver has not seen the end of the last exchange yet.
        let ready = kept.iter().rposition(|(_, one)| one.is_ready());
        let taken = ready.map(|at| kept.remove(at));
        if kept.is_empty() {
            by_key.remove(key);
        }
        let (number, connection) = taken?;
        by_age.remove(&number);
        Some(connection)
    }

    /// Puts a connection after its last exchange into the pool; evicts the oldest if the pool is full.
    pub(super) fn put(&self, key: &PoolKey, connection: Connection) {
        if connection.is_closed() {
            return;
        }
        let mut idle = self.0.lock();
        if idle.by_age.len() >= MAX_IDLE {
            idle.evict_oldest();
        }
        let number = idle.next;
        idle.next += 1;
        let kept = idle.by_key.entry(key.clone()).or_default();
        if kept.len() < MAX_IDLE_PER_KEY {
            kept.push((number, connection));
            idle.by_age.insert(number, (Instant::now(), key.clone()));
        }
    }

    /// Evicts connections that were idle for so long.
    pub(crate) fn evict_expired(&self, idle_timeout: Duration) {
        let now = Instant::now();
        let mut idle = self.0.lock();
        while let Some((_, (last, _))) = idle.by_age.first_key_value()
            && now.duration_since(*last) >= idle_timeout
        {
            idle.evict_oldest();
        }
        let Idle { by_key, by_age, .. } = &mut *idle;
        by_key.retain(|_, kept| {
            remove_closed(kept, by_age);
            !kept.is_empty()
        });
    }

    /// How many connections are idle.
    pub(super) fn len(&self) -> usize {
        self.0.lock().by_age.len()
    }

    /// Evicts the connection that was idle longest; false if there is none.
    pub(super) fn evict_oldest(&self) -> bool {
        self.0.lock().evict_oldest()
    }

    /// Evicts the connections that are private to this client connection, which has ended.
    pub(super) fn evict_private(&self, client: Id) {
        let mut idle = self.0.lock();
        let Idle { by_key, by_age, .. } = &mut *idle;
        by_key.retain(|key, kept| {
            let is_private = key.private_to == Some(client);
            if is_private {
                kept.iter().for_each(|(number, _)| {
                    by_age.remove(number);
                });
            }
            !is_private
        });
    }

    /// Closes all idle connections.
    pub(crate) fn clear(&self) {
        *self.0.lock() = Idle::default();
    }
}

impl Idle {
    fn evict_oldest(&mut self) -> bool {
        let Some((number, (_, key))) = self.by_age.pop_first() else {
            return false;
        };
        if let Some(kept) = self.by_key.get_mut(&key) {
            kept.retain(|(one, _)| *one != number);
            if kept.is_empty() {
                self.by_key.remove(&key);
            }
        }
        true
    }
}

fn remove_closed(
    kept: &mut Vec<(u64, Connection)>,
    by_age: &mut BTreeMap<u64, (Instant, PoolKey)>,
) {
    kept.retain(|(number, connection)| {
        let is_closed = connection.is_closed();
        if is_closed {
            by_age.remove(number);
        }
        !is_closed
    });
}

/// Idle connections to one origin: a burst of requests leaves no more than this behind.
const MAX_IDLE_PER_KEY: usize = 256;
/// Idle connections to all origins.
const MAX_IDLE: usize = 2048;
