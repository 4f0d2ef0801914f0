//! Names become addresses, and slow name servers take no more than their share of it.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use peername_sys::resolve::{self, ResolveError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::Fault;
use crate::host::Host;

/// The lookups that are under way.
#[derive(Debug, Default)]
pub(super) struct Lookups {
    /// How many each client has, while it has any.
    shares: Mutex<HashMap<IpAddr, Weak<Semaphore>>>,
    /// Who wants the same name at the same moment waits for the same answer.
    under_way: Arc<Mutex<UnderWay>>,
}

type UnderWay = HashMap<String, Answered>;
type Found = Result<Vec<IpAddr>, ResolveError>;
type Answered = watch::Receiver<Option<Found>>;

impl Lookups {
    /// By the C library, on a thread, because only it knows all that nsswitch.conf(5) may say. A resolver on this
    /// loop (hickory 0.26) took as much CPU time for a name, 0.14 ms: two sockets and their registrations cost what
    /// the threads do.
    ///
    /// A thread can't be told that nobody waits any more. So a client has a few at a time, and what it wants beyond
    /// waits for them, for no longer than `limit` in all.
    pub(super) async fn addresses(
        &self,
        host: &Host,
        client: IpAddr,
        limit: Duration,
    ) -> Result<Vec<IpAddr>, Fault> {
        let name = host.as_name().unwrap_or_default();
        let found = async {
            let begun = same(&lock(&self.under_way), name);
            let mut answered = match begun {
                Some(answered) => answered,
                None => {
                    // Nobody closes it.
                    let share = self.share(client).acquire_owned().await.ok();
                    self.look(name, share)
                }
            };
            let found = answered.wait_for(Option::is_some).await;
            found.ok().and_then(|found| found.clone())
        };
        match timeout(limit, found).await {
            Ok(Some(Ok(found))) => Ok(found),
            Ok(Some(Err(ResolveError::NoSuchName))) => Err(Fault::NoSuchName),
            Ok(Some(Err(ResolveError::Lookup(why)))) => Err(Fault::Lookup(why)),
            Ok(None) => Err(Fault::Lookup("the thread that asked has ended".to_owned())),
            Err(_) => Err(Fault::LookupTimeout(limit)),
        }
    }

    /// Begins one, unless somebody did while there was no place for it.
    fn look(&self, name: &str, share: Option<OwnedSemaphorePermit>) -> Answered {
        let mut under_way = lock(&self.under_way);
        if let Some(same) = same(&under_way, name) {
            return same;
        }
        let (answer, answered) = watch::channel(None);
        under_way.insert(name.to_owned(), answered.clone());
        let (name, under_way) = (name.to_owned(), Arc::clone(&self.under_way));
        spawn_blocking(move || {
            let found = resolve::lookup(&name);
            // Who comes now asks again: what was found may be of yesterday by then.
            lock(&under_way).remove(&name);
            drop(share);
            answer.send_replace(Some(found));
        });
        answered
    }

    fn share(&self, client: IpAddr) -> Arc<Semaphore> {
        let mut all = lock(&self.shares);
        if let Some(share) = all.get(&client).and_then(Weak::upgrade) {
            return share;
        }
        all.retain(|_, share| share.strong_count() > 0);
        let share = Arc::new(Semaphore::new(OF_ONE_CLIENT));
        all.insert(client, Arc::downgrade(&share));
        share
    }
}

/// One of this name that somebody has begun, and whose thread is still there.
fn same(under_way: &UnderWay, name: &str) -> Option<Answered> {
    let same = under_way.get(name)?;
    same.has_changed().is_ok().then(|| same.clone())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Of the 512 threads that each worker has for such things. More than a browser wants for a page.
const OF_ONE_CLIENT: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_over_takes_no_room() {
        let lookups = Lookups::default();
        let [client, another] = [1, 2].map(|last| [192, 0, 2, last].into());
        let host = Host::parse("localhost").unwrap();
        let limit = Duration::from_secs(10);
        assert!(lookups.addresses(&host, client, limit).await.is_ok());
        assert!(lock(&lookups.under_way).is_empty());
        let _share = lookups.share(another);
        assert!(!lock(&lookups.shares).contains_key(&client));
    }
}
