//! DNS lookups, with limits for each client and for all, so that lookups at slow name servers don't take all threads.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use peername_server::access::client_semaphore::{FairPermit, FairSemaphore};
use peername_server::threads::{MAX_REQUEST_THREADS, spawn_request_call};
use peername_sys::resolve::{self, ResolveError};
use tokio::sync::watch;
use tokio::time::timeout;

use super::error::UpstreamError;
use crate::host::Host;

/// The resolver, with its lookups in flight.
#[derive(Debug)]
pub(super) struct Resolver {
    /// Limits the lookups of each client, and of all.
    permits: FairSemaphore,
    /// Single flight: concurrent lookups of one name share one result.
    in_flight: Arc<Mutex<InFlight>>,
}

type InFlight = HashMap<String, PendingLookup>;
type LookupResult = Result<Vec<IpAddr>, ResolveError>;
type PendingLookup = watch::Receiver<Option<LookupResult>>;

impl Default for Resolver {
    fn default() -> Self {
        Self {
            permits: FairSemaphore::with_share(MAX_LOOKUPS, MAX_LOOKUPS_PER_CLIENT),
            in_flight: Arc::default(),
        }
    }
}

impl Resolver {
    /// Resolves a name by the C library, on a thread: only the C library supports all that nsswitch.conf(5) may configure. A
    /// resolver on the event loop (hickory 0.26) took as much CPU time per name, 0.14 ms, for its two sockets and their
    /// registrations.
    ///
    /// A lookup on a thread can't be cancelled. So a client may have [`MAX_LOOKUPS_PER_CLIENT`] lookups in flight, and all
    /// clients [`MAX_LOOKUPS`]; further lookups wait for these. Waiting and lookup together may take `limit`.
    pub(super) async fn resolve(
        &self,
        host: &Host,
        client: IpAddr,
        limit: Duration,
    ) -> Result<Vec<IpAddr>, UpstreamError> {
        let name = host.as_name().unwrap_or_default();
        let lookup = async {
            let in_flight = find_pending(&self.in_flight.lock(), name);
            let mut pending = match in_flight {
                Some(pending) => pending,
                None => {
                    let permit = self.permits.acquire(client).await;
                    self.start_lookup(name, permit)
                }
            };
            let result = pending.wait_for(Option::is_some).await;
            result.ok().and_then(|result| result.clone())
        };
        match timeout(limit, lookup).await {
            Ok(Some(Ok(ips))) => Ok(ips),
            Ok(Some(Err(error))) => Err(UpstreamError::from_lookup(error)),
            Ok(None) => Err(UpstreamError::Lookup("the lookup was aborted".to_owned())),
            Err(_) => Err(UpstreamError::LookupTimeout(limit)),
        }
    }

    /// Starts a lookup, unless another request has started one while this request waited for its permit.
    fn start_lookup(&self, name: &str, permit: Option<FairPermit>) -> PendingLookup {
        let mut in_flight = self.in_flight.lock();
        if let Some(pending) = find_pending(&in_flight, name) {
            return pending;
        }
        let (result, pending) = watch::channel(None);
        in_flight.insert(name.to_owned(), pending.clone());
        let (name, in_flight) = (name.to_owned(), Arc::clone(&self.in_flight));
        spawn_request_call(move || {
            let ips = resolve::lookup(&name);
            // Removed before the result is sent: a later request has to start a new lookup.
            in_flight.lock().remove(&name);
            drop(permit);
            result.send_replace(Some(ips));
        });
        pending
    }
}

/// Finds the lookup of this name that is in flight. One that has ended without a result, together with its worker, is ignored.
fn find_pending(in_flight: &InFlight, name: &str) -> Option<PendingLookup> {
    let pending = in_flight.get(name)?;
    pending.has_changed().is_ok().then(|| pending.clone())
}

/// The maximum number of lookups of one client in flight: an eighth of the threads that all workers have for them
/// ([`MAX_REQUEST_THREADS`]). A browser needs fewer for a page.
const MAX_LOOKUPS_PER_CLIENT: usize = 32;
/// The maximum number of lookups of all clients in flight. The other threads are for policies and passwords.
const MAX_LOOKUPS: usize = MAX_REQUEST_THREADS / 4 * 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn lookups_of_all_clients_leave_threads_and_are_not_remembered() {
        let resolver = Resolver::default();
        let others = take_all_permits(&resolver).await;
        let client = IpAddr::from([192, 0, 2, 1]);
        let host = Host::parse("localhost").unwrap();
        let limit = Duration::from_millis(50);
        let waited = resolver.resolve(&host, client, limit).await;
        assert!(
            matches!(waited, Err(UpstreamError::LookupTimeout(_))),
            "{waited:?}"
        );
        assert!(resolver.in_flight.lock().is_empty());
        drop(others);
        let limit = Duration::from_secs(10);
        assert!(resolver.resolve(&host, client, limit).await.is_ok());
        assert!(resolver.in_flight.lock().is_empty());
        let all = timeout(limit, take_all_permits(&resolver)).await;
        assert!(all.is_ok(), "a permit was not returned");
    }

    async fn take_all_permits(resolver: &Resolver) -> Vec<Option<FairPermit>> {
        let mut permits = Vec::new();
        for number in 0..MAX_LOOKUPS {
            let client = u8::try_from(number / MAX_LOOKUPS_PER_CLIENT).unwrap();
            let client = IpAddr::from([198, 51, 100, client]);
            permits.push(resolver.permits.acquire(client).await);
        }
        permits
    }
}
