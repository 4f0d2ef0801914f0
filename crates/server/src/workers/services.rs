//! The services of all listeners, swapped as one value by a reload.
//!
//! A service is what the connections of a listener are served with: one process may listen for several backends, each with
//! rules of its own. A reload replaces all services, and connections and sessions that have begun keep the service that they
//! began with.

use std::sync::Arc;

use arc_swap::{ArcSwap, Cache, Guard};

use crate::listeners::ListenerId;

/// The service of every listener, sorted by id.
#[derive(Debug)]
pub struct Services<S>(Box<[(ListenerId, Arc<S>)]>);

/// Holds the services that new connections get. Clones share them.
#[derive(Debug)]
pub struct ServiceHandle<S>(Arc<ArcSwap<Services<S>>>);

/// A cache of [`ServiceHandle`] for a loop that loads often: a load costs one relaxed read.
pub type ServiceCache<S> = Cache<Arc<ArcSwap<Services<S>>>, Arc<Services<S>>>;

impl<S> Services<S> {
    /// The service of a listener; `None` for a listener that has none.
    pub fn get(&self, listener: ListenerId) -> Option<&Arc<S>> {
        let index = self.0.binary_search_by_key(&listener, |&(id, _)| id).ok()?;
        self.0.get(index).map(|(_, service)| service)
    }
}

impl<S> FromIterator<(ListenerId, Arc<S>)> for Services<S> {
    fn from_iter<I: IntoIterator<Item = (ListenerId, Arc<S>)>>(services: I) -> Self {
        let mut services: Box<[_]> = services.into_iter().collect();
        services.sort_unstable_by_key(|&(id, _)| id);
        Self(services)
    }
}

impl<S> Clone for ServiceHandle<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<S> ServiceHandle<S> {
    /// Starts with these services.
    pub fn new(services: Services<S>) -> Self {
        Self(Arc::new(ArcSwap::from_pointee(services)))
    }

    /// Replaces the services of connections that begin from now on.
    pub fn replace(&self, services: Services<S>) {
        self.0.store(Arc::new(services));
    }

    /// The current services. The guard should be dropped soon.
    pub fn load(&self) -> Guard<Arc<Services<S>>> {
        self.0.load()
    }

    /// A cache of the current services, for one thread.
    pub fn cache(&self) -> ServiceCache<S> {
        Cache::new(Arc::clone(&self.0))
    }
}
