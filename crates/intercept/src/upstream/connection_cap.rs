//! The cap on connections to origins, for all workers together, each client's share of it, and its gauges. Each connection
//! takes a file descriptor.

use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use peername_observe::encode;
use peername_server::access::client_limit::{ClientLimit, ClientPermit};
use peername_server::access::max_connections::MaxConnections;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;

use super::connection_permit::ConnectionPermit;
use super::error::UpstreamError;
use super::idle_pool::IdlePool;

/// Grants a permit for each connection. Evicts an idle connection for a new one if the cap is reached.
#[derive(Debug)]
pub(super) struct ConnectionCap {
    max: usize,
    connections: Arc<AtomicUsize>,
    /// Limits the connections that a client uses. Idle ones can be evicted, so they are in no client's share.
    shares: Arc<ClientLimit>,
    /// The workers' idle pools, whose connections may be evicted.
    pools: Mutex<Vec<Weak<IdlePool>>>,
}

/// The numbers of connections to origins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PoolUsage {
    /// The connections in the pools.
    pub(super) idle: usize,
    /// All others, including those that are being opened.
    pub(super) in_use: usize,
}

impl ConnectionCap {
    pub(super) fn new(max: usize) -> Self {
        Self {
            max,
            connections: Arc::default(),
            shares: Arc::new(ClientLimit::new(MaxConnections::new(max))),
            pools: Mutex::default(),
        }
    }

    /// Adds a pool whose idle connections may be evicted.
    pub(super) fn add_pool(&self, pool: &Arc<IdlePool>) {
        self.pools.lock().push(Arc::downgrade(pool));
    }

    /// Acquires a permit for a connection of this client.
    ///
    /// # Errors
    ///
    /// [`UpstreamError::Full`] if the cap is reached by connections in use, [`UpstreamError::ShareFull`] if the client uses its
    /// share of them.
    pub(super) fn acquire(&self, client: IpAddr) -> Result<Arc<ConnectionPermit>, UpstreamError> {
        let share = self.shares.try_acquire(client);
        let share = share.ok_or(UpstreamError::ShareFull(self.max))?;
        let permit = self.issue(share).ok_or(UpstreamError::Full(self.max))?;
        Ok(Arc::new(permit))
    }

    /// Acquires a permit for a further attempt to open a connection that has a permit. `None` if the cap is reached by
    /// connections in use, or if the client uses its share.
    pub(super) fn acquire_spare(&self, client: IpAddr) -> Option<ConnectionPermit> {
        self.issue(self.shares.try_acquire(client)?)
    }

    /// Issues a permit to a client with this share. `None` if the cap is reached by connections in use.
    fn issue(&self, share: ClientPermit) -> Option<ConnectionPermit> {
        let (permit, before) = ConnectionPermit::issue(&self.connections, &self.shares, share);
        // An evicted connection is closed asynchronously: until then there is one connection more than the cap.
        (before < self.max || self.evict_idle()).then_some(permit)
    }

    /// Counts the connections. The two numbers are not read atomically.
    pub(super) fn usage(&self) -> PoolUsage {
        let pools = self.pools.lock();
        let idle = pools
            .iter()
            .filter_map(Weak::upgrade)
            .map(|pool| pool.len())
            .sum();
        let open = self.connections.load(Relaxed);
        PoolUsage {
            idle,
            in_use: open.saturating_sub(idle),
        }
    }

    /// Closes the idle connections of all pools.
    pub(super) fn close_idle(&self) {
        let pools = self.pools.lock();
        pools
            .iter()
            .filter_map(Weak::upgrade)
            .for_each(|pool| pool.clear());
    }

    fn evict_idle(&self) -> bool {
        self.pools
            .lock()
            .iter()
            .any(|pool| pool.upgrade().is_some_and(|pool| pool.evict_oldest()))
    }
}

/// Collects the gauges of the cap and the pools.
#[derive(Debug)]
pub(super) struct PoolCollector(pub(super) Arc<ConnectionCap>);

impl Collector for PoolCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let PoolUsage { idle, in_use } = self.0.usage();
        encode::gauges(
            &mut encoder,
            "peername_intercept_upstream_connections",
            "Connections to origins that are open now, by whether they are in use",
            [
                ([("state", "idle")], idle as u64),
                ([("state", "in_use")], in_use as u64),
            ],
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_that_uses_its_share_leaves_connections_for_others() {
        let cap = ConnectionCap::new(6);
        let [client, another]: [IpAddr; 2] = [1, 2].map(|last| [192, 0, 2, last].into());
        let permits: Vec<_> = std::iter::from_fn(|| cap.acquire(client).ok()).collect();
        assert_eq!(permits.len(), 4);
        let full = cap.acquire(client);
        assert!(matches!(full, Err(UpstreamError::ShareFull(6))), "{full:?}");
        let idle = cap.acquire(another).expect("a permit");
        idle.release();
        assert!(!idle.lease_to(client));
        assert!(idle.lease_to(another));
        // An idle connection is in no client's share.
        permits[0].release();
        assert!(idle.lease_to(client));
    }

    #[test]
    fn spare_permit_counts_against_the_cap() {
        let cap = ConnectionCap::new(2);
        let [first, second, third]: [IpAddr; 3] = [1, 2, 3].map(|last| [192, 0, 2, last].into());
        let _permit = cap.acquire(first).expect("a permit");
        let spare = cap.acquire_spare(second).expect("a permit");
        assert!(cap.acquire_spare(third).is_none());
        drop(spare);
        assert!(cap.acquire_spare(third).is_some());
    }
}
