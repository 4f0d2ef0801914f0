//! Connections to origins that nobody uses, kept for the next request to the same place.
//!
//! One pool a worker, so that nothing crosses threads. What may be shared is decided by the [`Key`]:
//! whatever makes a difference to the origin stands in it.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::connection::Connection;
use crate::host::HostPort;

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
}

/// Idle connections of one worker.
#[derive(Debug, Default)]
pub(crate) struct Pool(Mutex<HashMap<Key, Kept>>);

/// The one used last is the one used next: the others may then grow old.
type Kept = Vec<(Instant, Connection)>;

impl Pool {
    /// One that can take a request now.
    pub(super) fn take(&self, key: &Key) -> Option<Connection> {
        let mut all = self.lock();
        let kept = all.get_mut(key)?;
        kept.retain(|(_, connection)| !connection.is_closed());
        // One whose task has not seen the end of the last exchange yet is left for later.
        let ready = kept.iter().rposition(|(_, one)| one.is_ready());
        let taken = ready.map(|at| kept.remove(at).1);
        if kept.is_empty() {
            all.remove(key);
        }
        taken
    }

    /// Keeps one whose exchanges are over.
    pub(super) fn keep(&self, key: &Key, connection: Connection) {
        if connection.is_closed() {
            return;
        }
        let mut all = self.lock();
        let kept = all.entry(key.clone()).or_default();
        if kept.len() < MOST_IDLE {
            kept.push((Instant::now(), connection));
        }
    }

    /// Closes what nobody has used for so long.
    pub(crate) fn forget_unused(&self, since: Duration) {
        let now = Instant::now();
        self.lock().retain(|_, kept| {
            kept.retain(|(last, one)| now.duration_since(*last) < since && !one.is_closed());
            !kept.is_empty()
        });
    }

    /// Closes all that is idle.
    pub(crate) fn clear(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Kept>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Of one origin. A crowd that has left leaves no more than this behind.
const MOST_IDLE: usize = 256;
