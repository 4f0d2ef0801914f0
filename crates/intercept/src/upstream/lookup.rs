//! Names become addresses, and slow name servers take no more than their share of it.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use peername_sys::resolve::{self, Unresolved};
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::Fault;
use crate::host::Host;

/// Each client's lookups, while it has any.
#[derive(Debug, Default)]
pub(super) struct Lookups(Mutex<HashMap<IpAddr, Weak<Semaphore>>>);

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
        let name = host.as_name().unwrap_or_default().to_owned();
        let share = self.share(client);
        let found = async {
            // Nobody closes it.
            let until_it_ends = share.acquire_owned().await.ok();
            let look = move || {
                let found = resolve::addresses(&name);
                drop(until_it_ends);
                found
            };
            spawn_blocking(look).await
        };
        match timeout(limit, found).await {
            Ok(Ok(Ok(found))) => Ok(found),
            Ok(Ok(Err(Unresolved::NoSuchName))) => Err(Fault::NoSuchName),
            Ok(Ok(Err(Unresolved::Failed(why)))) => Err(Fault::Lookup(why)),
            Ok(Err(ended)) => Err(Fault::Lookup(ended.to_string())),
            Err(_) => Err(Fault::LookupTimeout(limit)),
        }
    }

    fn share(&self, client: IpAddr) -> Arc<Semaphore> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(share) = all.get(&client).and_then(Weak::upgrade) {
            return share;
        }
        all.retain(|_, share| share.strong_count() > 0);
        let share = Arc::new(Semaphore::new(OF_ONE_CLIENT));
        all.insert(client, Arc::downgrade(&share));
        share
    }
}

/// Of the 512 threads that each worker has for such things. More than a browser wants for a page.
const OF_ONE_CLIENT: usize = 32;
