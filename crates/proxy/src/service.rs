//! The rules and the connector of each listener, swapped as one value by a reload.
//!
//! One process may listen for several backends, each with rules of its own. All of them together are one immutable
//! value. A reload replaces it, and connections and sessions that have begun keep the service they began with.

use std::sync::Arc;

use arc_swap::{ArcSwap, Cache, Guard};
use peername_server::listeners::ListenerId;

use crate::connect::Connector;
use crate::policy::rules::Rules;
use crate::telemetry::counters::Counters;

/// The rules of some listeners, and the connector to their backend.
#[derive(Debug)]
pub struct Service {
    pub(crate) rules: Rules,
    pub(crate) connector: Connector,
}

/// The service of every listener, sorted by id.
#[derive(Debug, Default)]
pub struct Services(Box<[(ListenerId, Arc<Service>)]>);

/// Holds the services that new connections get. Clones share them.
#[derive(Clone, Debug)]
pub struct ServiceHandle(Arc<ArcSwap<Services>>);

/// [`ServiceHandle`] for a loop that loads often: a load costs one relaxed read.
pub(crate) type ServiceCache = Cache<Arc<ArcSwap<Services>>, Arc<Services>>;

impl Service {
    /// A service by these rules.
    ///
    /// # Errors
    ///
    /// As [`Connector::new`].
    pub fn new(rules: Rules, counters: &Arc<Counters>) -> peername_sys::Result<Self> {
        let upstream = rules.config.upstream.clone();
        let connector = Connector::new(upstream, Arc::clone(counters))?;
        Ok(Self { rules, connector })
    }
}

impl Services {
    /// One service for all of these listeners.
    pub fn with_one(listeners: impl IntoIterator<Item = ListenerId>, service: Service) -> Self {
        let service = Arc::new(service);
        let with = |id| (id, Arc::clone(&service));
        listeners.into_iter().map(with).collect()
    }

    /// The service of a listener; `None` for a listener that has none.
    pub fn get(&self, listener: ListenerId) -> Option<&Arc<Service>> {
        let index = self.0.binary_search_by_key(&listener, |&(id, _)| id).ok()?;
        self.0.get(index).map(|(_, service)| service)
    }
}

impl FromIterator<(ListenerId, Arc<Service>)> for Services {
    fn from_iter<I: IntoIterator<Item = (ListenerId, Arc<Service>)>>(all: I) -> Self {
        let mut services: Box<[_]> = all.into_iter().collect();
        services.sort_unstable_by_key(|&(id, _)| id);
        Self(services)
    }
}

impl ServiceHandle {
    /// Starts with these services.
    pub fn new(services: Services) -> Self {
        Self(Arc::new(ArcSwap::from_pointee(services)))
    }

    /// Replaces the services of connections that begin from now on.
    pub fn replace(&self, services: Services) {
        self.0.store(Arc::new(services));
    }

    /// The current services. The guard should be dropped soon.
    pub(crate) fn load(&self) -> Guard<Arc<Services>> {
        self.0.load()
    }

    pub(crate) fn cache(&self) -> ServiceCache {
        Cache::new(Arc::clone(&self.0))
    }
}
