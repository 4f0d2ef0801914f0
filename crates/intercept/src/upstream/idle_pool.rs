//! Connections to origins that nobody uses, kept for the next request to the same place.
//!
//! One pool a worker, so that nothing crosses threads. What may be shared is decided by the [`Key`]:
//! whatever makes a difference to the origin stands in it.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::connection::Connection;
use crate::host::HostPort;
use crate::request::id::Id;

/// What a connection is good for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub(crate) to: HostPort,
    pub(crate) tls: bool,
    /// Whether HTTP/2 is offered.
    pub(crate) http2: bool,
    /// The address that the client was going to, where it chose one.
    pub(crate) via: Option<IpAddr>,
    /// Whom a PROXY header speaks for. Two clients then never share a connection.
    pub(crate) speaks_for: Option<SocketAddr>,
    /// The client connection that alone may use it, because it may have been made one user's.
    pub(crate) private_to: Option<Id>,
}

impl Key {
    /// The same, for this client connection only.
    pub(super) fn private_to(&self, client: Id) -> Self {
        Self {
            private_to: Some(client),
            ..self.clone()
        }
    }
}

/// Idle connections of one worker.
#[derive(Debug, Default)]
pub(crate) struct Pool(Mutex<Idle>);

#[derive(Debug, Default)]
struct Idle {
    /// The one used last is the one used next: the others may then grow old.
    by_key: HashMap<Key, Vec<(u64, Connection)>>,
    /// Each under its number, which counts on, with when it was used last.
    by_age: BTreeMap<u64, (Instant, Key)>,
    next: u64,
}

impl Pool {
    /// One that can take a request now.
    pub(super) fn take(&self, key: &Key) -> Option<Connection> {
        let mut idle = self.lock();
        let Idle { by_key, by_age, .. } = &mut *idle;
        let kept = by_key.get_mut(key)?;
        forget_closed(kept, by_age);
        // One whose task has not seen the end of the last exchange yet is left for later.
        let ready = kept.iter().rposition(|(_, one)| one.is_ready());
        let taken = ready.map(|at| kept.remove(at));
        if kept.is_empty() {
            by_key.remove(key);
        }
        let (number, connection) = taken?;
        by_age.remove(&number);
        Some(connection)
    }

    /// Keeps one whose exchanges are over.
    pub(super) fn keep(&self, key: &Key, connection: Connection) {
        if connection.is_closed() {
            return;
        }
        let mut idle = self.lock();
        if idle.by_age.len() >= MOST_IDLE {
            idle.close_oldest();
        }
        let number = idle.next;
        idle.next += 1;
        let kept = idle.by_key.entry(key.clone()).or_default();
        if kept.len() < MOST_OF_ONE {
            kept.push((number, connection));
            idle.by_age.insert(number, (Instant::now(), key.clone()));
        }
    }

    /// Closes what nobody has used for so long.
    pub(crate) fn forget_unused(&self, since: Duration) {
        let now = Instant::now();
        let mut idle = self.lock();
        while let Some((_, (last, _))) = idle.by_age.first_key_value()
            && now.duration_since(*last) >= since
        {
            idle.close_oldest();
        }
        let Idle { by_key, by_age, .. } = &mut *idle;
        by_key.retain(|_, kept| {
            forget_closed(kept, by_age);
            !kept.is_empty()
        });
    }

    /// Closes the one that has waited longest; whether there was one.
    pub(super) fn close_oldest(&self) -> bool {
        self.lock().close_oldest()
    }

    /// Closes what only this client connection could have used: it has ended.
    pub(super) fn close_private(&self, client: Id) {
        let mut idle = self.lock();
        let Idle { by_key, by_age, .. } = &mut *idle;
        by_key.retain(|key, kept| {
            let is_theirs = key.private_to == Some(client);
            if is_theirs {
                kept.iter().for_each(|(number, _)| {
                    by_age.remove(number);
                });
            }
            !is_theirs
        });
    }

    /// Closes all that is idle.
    pub(crate) fn clear(&self) {
        *self.lock() = Idle::default();
    }

    fn lock(&self) -> MutexGuard<'_, Idle> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Idle {
    fn close_oldest(&mut self) -> bool {
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

fn forget_closed(kept: &mut Vec<(u64, Connection)>, by_age: &mut BTreeMap<u64, (Instant, Key)>) {
    kept.retain(|(number, connection)| {
        let is_closed = connection.is_closed();
        if is_closed {
            by_age.remove(number);
        }
        !is_closed
    });
}

/// Of one origin. A crowd that has left leaves no more than this behind.
const MOST_OF_ONE: usize = 256;
/// Of all origins.
const MOST_IDLE: usize = 2048;
