//! Semaphores of which each client has its own, or a share.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::client_limit::client_prefix;

/// A semaphore for each client, an IPv4 address or an IPv6 /64.
#[derive(Debug)]
pub struct ClientSemaphores {
    permits: usize,
    semaphores: Mutex<SemaphoreMap>,
}

#[derive(Debug, Default)]
struct SemaphoreMap {
    /// The semaphores that are in use, and some that were.
    by_client: HashMap<IpAddr, Weak<Semaphore>>,
    /// The number of semaphores at which those that are not in use are removed next.
    prune_at: usize,
}

impl ClientSemaphores {
    /// Semaphores with this number of permits each.
    pub fn new(permits: usize) -> Self {
        Self {
            permits,
            semaphores: Mutex::default(),
        }
    }

    /// The semaphore of this client. It is never closed.
    pub fn get(&self, client: IpAddr) -> Arc<Semaphore> {
        let client = client_prefix(client);
        let mut semaphores = self.semaphores.lock();
        let known = semaphores.by_client.get(&client);
        if let Some(semaphore) = known.and_then(Weak::upgrade) {
            return semaphore;
        }
        if semaphores.by_client.len() >= semaphores.prune_at {
            semaphores.prune();
        }
        let semaphore = Arc::new(Semaphore::new(self.permits));
        semaphores
            .by_client
            .insert(client, Arc::downgrade(&semaphore));
        semaphore
    }
}

impl SemaphoreMap {
    /// Removes the semaphores that are not in use. The next pruning is due when the number of those that are left has doubled:
    /// all workers wait for it.
    fn prune(&mut self) {
        self.by_client
            .retain(|_, semaphore| semaphore.strong_count() > 0);
        self.prune_at = (self.by_client.len() * 2).max(MIN_PRUNED);
    }
}

/// Fewer semaphores than this are not examined.
const MIN_PRUNED: usize = 64;

/// A semaphore of whose permits one client gets a share at most.
///
/// A client beyond its share waits in a queue of its own. So one such client delays no other, and each further one delays the
/// others by less than the time for which a permit is held, however long its queue is.
#[derive(Debug)]
pub struct FairSemaphore {
    permits: Arc<Semaphore>,
    shares: ClientSemaphores,
}

/// A permit of a [`FairSemaphore`].
#[derive(Debug)]
pub struct FairPermit {
    // Fields are dropped in this order: the client's next one then queues behind those of other clients.
    _permit: OwnedSemaphorePermit,
    _share: OwnedSemaphorePermit,
}

impl FairSemaphore {
    /// A semaphore with this number of permits, two thirds of them for one client. A single permit can't be shared.
    pub fn new(permits: usize) -> Self {
        Self::with_share(permits, (2 * permits / 3).max(1))
    }

    /// A semaphore with this number of permits, `share` of them for one client.
    pub fn with_share(permits: usize, share: usize) -> Self {
        Self {
            permits: Arc::new(Semaphore::new(permits)),
            shares: ClientSemaphores::new(share),
        }
    }

    /// Acquires a permit in this client's turn; never `None`, as the semaphore is never closed. Cancel-safe: a cancelled
    /// call loses its place.
    pub async fn acquire(&self, client: IpAddr) -> Option<FairPermit> {
        let share = self.shares.get(client).acquire_owned().await.ok()?;
        let permit = Arc::clone(&self.permits).acquire_owned().await.ok()?;
        Some(FairPermit {
            _permit: permit,
            _share: share,
        })
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    /// An IPv6 host may use all addresses of its network.
    #[test]
    fn clients_of_one_ipv6_network_share_a_semaphore() {
        let semaphores = ClientSemaphores::new(1);
        let [one, other, stranger] = ["2001:db8::1", "2001:db8::ffff:2", "2001:db8:0:1::1"]
            .map(|client| semaphores.get(client.parse().unwrap()));
        assert!(Arc::ptr_eq(&one, &other) && !Arc::ptr_eq(&one, &stranger));
    }

    #[test]
    fn semaphores_that_are_not_in_use_are_not_remembered() {
        let semaphores = ClientSemaphores::new(1);
        let in_use = semaphores.get([192, 0, 2, 0].into());
        for last in 1..=255 {
            drop(semaphores.get([192, 0, 2, last].into()));
        }
        assert!(semaphores.semaphores.lock().by_client.len() <= MIN_PRUNED);
        assert!(Arc::ptr_eq(&in_use, &semaphores.get([192, 0, 2, 0].into())));
    }

    #[tokio::test]
    async fn client_gets_two_thirds_of_the_permits_and_others_the_rest() {
        let [client, another]: [IpAddr; 2] = [1, 2].map(|last| [192, 0, 2, last].into());
        for (permits, share) in [(2, 1), (3, 2)] {
            let semaphore = FairSemaphore::new(permits);
            let acquire = || semaphore.acquire(client).now_or_never();
            let mut held: Vec<_> = (0..share).filter_map(|_| acquire()).collect();
            assert_eq!(held.len(), share);
            let mut next = Box::pin(semaphore.acquire(client));
            assert!((&mut next).now_or_never().is_none());
            assert!(semaphore.acquire(another).now_or_never().is_some());
            held.pop();
            assert!(next.await.is_some());
        }
    }
}
