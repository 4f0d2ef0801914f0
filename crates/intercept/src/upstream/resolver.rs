//! DNS lookups, with a limit for each client, so that slow name servers of one don't take the threads of all.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use peername_server::access::client_limit::client_prefix;
use peername_sys::resolve::{self, ResolveError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::error::UpstreamError;
use crate::host::Host;

/// The resolver, with its lookups in flight.
#[derive(Debug, Default)]
pub(super) struct Resolver {
    /// The permits of each client, or network of one (IPv6), that has a lookup in flight.
    client_permits: Mutex<HashMap<IpAddr, Weak<Semaphore>>>,
    /// Single flight: lookups of one name at the same time share one result.
    in_flight: Arc<Mutex<InFlight>>,
}

type InFlight = HashMap<String, PendingLookup>;
type LookupResult = Result<Vec<IpAddr>, ResolveError>;
type PendingLookup = watch::Receiver<Option<LookupResult>>;

impl Resolver {
    /// Resolves a name with the C library, on a thread: only the C library supports all that nsswitch.conf(5) may configure.
    /// A resolver on the event loop (hickory 0.26) took as much CPU time for a name, 0.14 ms: two sockets and their
    /// registrations cost what the threads do.
    ///
    /// A lookup on a thread can't be cancelled. So a client has [`MAX_LOOKUPS_PER_CLIENT`] at a time, and further ones wait
    /// for these, within `limit` in all.
    ///
    /// # Errors
    ///
    /// [`UpstreamError::NoSuchName`], [`UpstreamError::Lookup`], [`UpstreamError::LookupTimeout`].
    pub(super) async fn resolve(
        &self,
        host: &Host,
        client: IpAddr,
        limit: Duration,
    ) -> Result<Vec<IpAddr>, UpstreamError> {
        let name = host.as_name().unwrap_or_default();
        let found = async {
            let begun = find_pending(&self.in_flight.lock(), name);
            let mut pending = match begun {
                Some(pending) => pending,
                None => {
                    // The semaphore is never closed.
                    let permit = self.permits(client).acquire_owned().await.ok();
                    self.start_lookup(name, permit)
                }
            };
            let found = pending.wait_for(Option::is_some).await;
            found.ok().and_then(|found| found.clone())
        };
        match timeout(limit, found).await {
            Ok(Some(Ok(found))) => Ok(found),
            Ok(Some(Err(ResolveError::NoSuchName))) => Err(UpstreamError::NoSuchName),
            Ok(Some(Err(ResolveError::Lookup(why)))) => Err(UpstreamError::Lookup(why)),
            Ok(None) => Err(UpstreamError::Lookup(
                "the thread that asked has ended".to_owned(),
            )),
            Err(_) => Err(UpstreamError::LookupTimeout(limit)),
        }
    }

    /// Starts a lookup, unless another request did while this one waited for its permit.
    fn start_lookup(&self, name: &str, permit: Option<OwnedSemaphorePermit>) -> PendingLookup {
        let mut in_flight = self.in_flight.lock();
        if let Some(pending) = find_pending(&in_flight, name) {
            return pending;
        }
        let (result, pending) = watch::channel(None);
        in_flight.insert(name.to_owned(), pending.clone());
        let (name, in_flight) = (name.to_owned(), Arc::clone(&self.in_flight));
        spawn_blocking(move || {
            let found = resolve::lookup(&name);
            // Removed before it is sent: a later request needs a new lookup, and must not get this result.
            in_flight.lock().remove(&name);
            drop(permit);
            result.send_replace(Some(found));
        });
        pending
    }

    fn permits(&self, client: IpAddr) -> Arc<Semaphore> {
        let client = client_prefix(client);
        let mut all = self.client_permits.lock();
        if let Some(permits) = all.get(&client).and_then(Weak::upgrade) {
            return permits;
        }
        all.retain(|_, permits| permits.strong_count() > 0);
        let permits = Arc::new(Semaphore::new(MAX_LOOKUPS_PER_CLIENT));
        all.insert(client, Arc::downgrade(&permits));
        permits
    }
}

/// The lookup of this name that is in flight, if its thread has not ended.
fn find_pending(in_flight: &InFlight, name: &str) -> Option<PendingLookup> {
    let pending = in_flight.get(name)?;
    pending.has_changed().is_ok().then(|| pending.clone())
}

/// The most lookups of one client at a time, of the 512 threads that each worker has for blocking calls. A browser
/// needs fewer for a page.
const MAX_LOOKUPS_PER_CLIENT: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn finished_lookups_are_not_remembered() {
        let resolver = Resolver::default();
        let [client, another]: [IpAddr; 2] = [1, 2].map(|last| [192, 0, 2, last].into());
        let host = Host::parse("localhost").unwrap();
        let limit = Duration::from_secs(10);
        assert!(resolver.resolve(&host, client, limit).await.is_ok());
        assert!(resolver.in_flight.lock().is_empty());
        let _permits = resolver.permits(another);
        assert!(!resolver.client_permits.lock().contains_key(&client));
    }

    /// One host has all addresses of its network.
    #[test]
    fn permits_are_those_of_an_ipv6_network() {
        let resolver = Resolver::default();
        let [one, other, stranger] = ["2001:db8::1", "2001:db8::ffff:2", "2001:db8:0:1::1"]
            .map(|client| resolver.permits(client.parse().unwrap()));
        assert!(Arc::ptr_eq(&one, &other) && !Arc::ptr_eq(&one, &stranger));
    }
}
