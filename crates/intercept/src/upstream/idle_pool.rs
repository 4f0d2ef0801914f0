//! The idle pool: connections to origins that are not in use, kept for the next request to the same origin.
//!
//! Each worker has a pool, so that no connection crosses threads. Requests with the same [`PoolKey`] may use the same connection.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::connection::Connection;
use crate::host::HostPort;
use crate::request::id::Id;
use crate::request::via::ViaLines;

/// Identifies the requests that may use a connection: they need the same origin, reached and verified in the same way. The dialer
/// derives it from an allowed request or tunnel.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct PoolKey {
    /// The number of the dialer, whose configuration determines how an origin is reached and verified.
    pub(super) dialer: u64,
    /// The generation of the access lists, which determine whether an origin may be reached.
    pub(super) generation: u64,
    pub(super) to: HostPort,
    /// Whether TLS is spoken with the origin, by this proxy or by the client in a tunnel. An upstream proxy then gets a CONNECT.
    pub(super) tls: bool,
    /// Whether HTTP/2 is offered.
    pub(super) http2: bool,
    /// The original destination of a redirected connection, which the client chose.
    pub(super) original_dst: Option<IpAddr>,
    /// Whether the rule that allows the requests names the port. Such a rule permits ports that other requests may not use.
    pub(super) is_port_named: bool,
    /// The client that the PROXY header names, if one is sent. Two clients then never share a connection.
    pub(super) announced_client: Option<SocketAddr>,
    /// The Via lines of the CONNECT that an upstream proxy is sent, before this process adds its own.
    pub(super) via: ViaLines,
    /// The only client connection that may use the connection, because the connection may be authenticated as one user.
    pub(super) private_to: Option<Id>,
}

impl PoolKey {
    /// This key for connections that are private to a client connection.
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
    /// Connections with their sequence numbers. Last in, first out, so that surplus connections expire.
    by_key: HashMap<PoolKey, Vec<(u64, Connection)>>,
    /// The time of last use and the key of each connection, by sequence number.
    by_age: BTreeMap<u64, (Instant, PoolKey)>,
    next_number: u64,
}

impl IdlePool {
    /// Takes a connection that can take a request now, and leases it to this client; `None` if there is none, or the client
    /// uses its share of connections.
    pub(super) fn take(&self, key: &PoolKey, client: IpAddr) -> Option<Connection> {
        let mut idle = self.0.lock();
        let Idle { by_key, by_age, .. } = &mut *idle;
        let connections = by_key.get_mut(key)?;
        remove_closed(connections, by_age);
        // A connection is not ready until its driver has seen the end of the last exchange.
        let taken = connections
            .iter()
            .rposition(|(_, connection)| connection.is_ready())
            // One beyond the share stays in the pool, so that its idle time goes on.
            .filter(|&index| connections[index].1.info.permit.lease_to(client))
            .map(|index| connections.remove(index));
        if connections.is_empty() {
            by_key.remove(key);
        }
        let (number, connection) = taken?;
        by_age.remove(&number);
        Some(connection)
    }

    /// Adds a connection that is not in use, unless there are enough of its key. Evicts the oldest one if the pool is full.
    pub(super) fn put(&self, key: &PoolKey, connection: Connection) {
        if connection.is_closed() {
            return;
        }
        let mut idle = self.0.lock();
        // Checked first: a busy origin must not evict the connections of others.
        if idle.by_key.get(key).map_or(0, Vec::len) >= MAX_IDLE_PER_KEY {
            return connection.close();
        }
        if idle.by_age.len() >= MAX_IDLE
            && let Some(oldest) = idle.remove_oldest()
        {
            oldest.close();
        }
        let number = idle.next_number;
        idle.next_number += 1;
        let connections = idle.by_key.entry(key.clone()).or_default();
        connections.push((number, connection));
        idle.by_age.insert(number, (Instant::now(), key.clone()));
    }

    /// Evicts connections that were idle for `idle_timeout`, and those that are closed.
    pub(crate) fn evict_expired(&self, idle_timeout: Duration) {
        let now = Instant::now();
        let mut idle = self.0.lock();
        while let Some((_, (last_used, _))) = idle.by_age.first_key_value()
            && now.duration_since(*last_used) >= idle_timeout
            && let Some(oldest) = idle.remove_oldest()
        {
            oldest.close();
        }
        let Idle { by_key, by_age, .. } = &mut *idle;
        by_key.retain(|_, connections| {
            remove_closed(connections, by_age);
            !connections.is_empty()
        });
    }

    /// The number of idle connections.
    pub(super) fn len(&self) -> usize {
        self.0.lock().by_age.len()
    }

    /// Evicts the connection that was idle longest, and closes it without waiting for its end: its descriptor is needed. Returns
    /// `false` if there is none.
    pub(super) fn evict_oldest(&self) -> bool {
        let oldest = self.0.lock().remove_oldest();
        if let Some(oldest) = &oldest {
            oldest.info.permit.revoke();
        }
        oldest.is_some()
    }

    /// Evicts the connections that are private to this client connection, which has ended.
    pub(super) fn evict_private(&self, client: Id) {
        let mut idle = self.0.lock();
        let Idle { by_key, by_age, .. } = &mut *idle;
        by_key.retain(|key, connections| {
            let is_private = key.private_to == Some(client);
            if is_private {
                for (number, connection) in connections.drain(..) {
                    by_age.remove(&number);
                    connection.close();
                }
            }
            !is_private
        });
    }

    /// Closes all idle connections.
    pub(crate) fn clear(&self) {
        let idle = std::mem::take(&mut *self.0.lock());
        for (_, connection) in idle.by_key.into_values().flatten() {
            connection.close();
        }
    }
}

impl Idle {
    /// Removes the connection that was idle longest; `None` if there is none.
    fn remove_oldest(&mut self) -> Option<Connection> {
        let (number, (_, key)) = self.by_age.pop_first()?;
        let connections = self.by_key.get_mut(&key)?;
        let index = connections.iter().position(|(other, _)| *other == number)?;
        let (_, oldest) = connections.remove(index);
        if connections.is_empty() {
            self.by_key.remove(&key);
        }
        Some(oldest)
    }
}

fn remove_closed(
    connections: &mut Vec<(u64, Connection)>,
    by_age: &mut BTreeMap<u64, (Instant, PoolKey)>,
) {
    connections.retain(|(number, connection)| {
        let is_closed = connection.is_closed();
        if is_closed {
            by_age.remove(number);
        }
        !is_closed
    });
}

/// The maximum number of idle connections of one key, which a burst of requests leaves behind.
const MAX_IDLE_PER_KEY: usize = 256;
/// The maximum number of idle connections of all keys.
const MAX_IDLE: usize = 2048;

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use hyper::client::conn::http1;
    use hyper_util::rt::TokioIo;
    use tokio::io::DuplexStream;

    use super::*;
    use crate::audit::UpstreamFields;
    use crate::upstream::connection::{ConnectionInfo, Sender};
    use crate::upstream::connection_cap::ConnectionCap;
    use crate::upstream::request_body::RequestBody;

    /// Puts a connection of this client into the pool. Returns its key, and the origin's side of it.
    async fn put_connection(
        pool: &IdlePool,
        cap: &ConnectionCap,
        client: IpAddr,
    ) -> (PoolKey, DuplexStream) {
        let permit = cap.acquire(client).unwrap();
        permit.release();
        let (socket, origin) = tokio::io::duplex(64);
        let (mut sender, driver) = http1::handshake::<_, RequestBody>(TokioIo::new(socket))
            .await
            .unwrap();
        tokio::spawn(driver);
        sender.ready().await.unwrap();
        let to = HostPort::parse("a.test:80").unwrap();
        let fields = UpstreamFields {
            addr: ([192, 0, 2, 9], 80).into(),
            tls: None,
        };
        let info = ConnectionInfo::new(fields, false, permit);
        let key = PoolKey {
            dialer: 0,
            generation: 0,
            to,
            tls: false,
            http2: false,
            original_dst: None,
            is_port_named: false,
            announced_client: None,
            via: ViaLines::default(),
            private_to: None,
        };
        let sender = Sender::Http1(sender);
        pool.put(&key, Connection { sender, info });
        (key, origin)
    }

    #[tokio::test]
    async fn connection_beyond_a_clients_share_stays_as_old_as_it_is() {
        let (pool, cap) = (IdlePool::default(), ConnectionCap::new(3));
        let [client, another]: [IpAddr; 2] = [1, 2].map(|last| [192, 0, 2, last].into());
        let (key, _origin) = put_connection(&pool, &cap, another).await;
        let idle_timeout = Duration::from_millis(10);
        std::thread::sleep(idle_timeout);
        let _share = [(); 2].map(|()| cap.acquire(client).unwrap());
        assert!(pool.take(&key, client).is_none());
        assert_eq!(pool.len(), 1);
        pool.evict_expired(idle_timeout);
        assert_eq!(pool.len(), 0);
    }

    #[tokio::test]
    async fn idle_connection_is_evicted_for_a_further_attempt_to_connect() {
        let (pool, cap) = (Arc::new(IdlePool::default()), ConnectionCap::new(2));
        cap.add_pool(&pool);
        let [client, another]: [IpAddr; 2] = [1, 2].map(|last| [192, 0, 2, last].into());
        let _connection = cap.acquire(client).unwrap();
        let _idle = put_connection(&pool, &cap, another).await;
        let _spare = cap.acquire_spare(another).expect("a permit");
        assert_eq!(pool.len(), 0);
        assert!(cap.acquire_spare([192, 0, 2, 3].into()).is_none());
    }
}
