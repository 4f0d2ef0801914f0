//! What a connection is served by: found through its listener, swapped whole.
//!
//! One process may listen for several backends, each with rules of its own. All of them together are
//! one immutable value. A reload puts another one in its place, and whatever has begun goes on by the
//! rules it began with.

use std::net::SocketAddr;
use std::sync::Arc;

use arc_swap::{ArcSwap, Cache, Guard};

use crate::connect::Connector;
use crate::counters::Counters;
use crate::permit::Rules;

/// A listener, whichever worker's sockets it has. Never one that another listener of this process
/// had before: what is closed may still be serving its last sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ListenerId(pub u32);

/// The rules of some listeners, and the means to connect by them.
#[derive(Debug)]
pub struct Service {
    pub(crate) rules: Rules,
    pub(crate) connector: Connector,
}

/// Every listener's service, at one moment: as many as there are listeners, in the order of their ids.
#[derive(Debug, Default)]
pub struct Services(Box<[(ListenerId, Arc<Service>)]>);

/// The services that new connections get. Clones are the same.
#[derive(Clone, Debug)]
pub struct Current(Arc<ArcSwap<Services>>);

/// Numbers addresses from `first` on.
pub fn numbered(
    first: u32,
    addresses: &[SocketAddr],
) -> impl Iterator<Item = (ListenerId, SocketAddr)> {
    let ids = (first..).map(ListenerId);
    ids.zip(addresses.iter().copied())
}

/// [`Current`] for one loop, which asks often: a look costs one relaxed load.
pub(crate) type Look = Cache<Arc<ArcSwap<Services>>, Arc<Services>>;

impl Service {
    /// By these rules.
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
    /// The service of a listener, `None` when it is none of theirs.
    pub fn of(&self, listener: ListenerId) -> Option<&Arc<Service>> {
        let place = self.0.binary_search_by_key(&listener, |&(id, _)| id).ok()?;
        self.0.get(place).map(|(_, service)| service)
    }
}

impl Services {
    /// One service for these listeners.
    pub fn one(listeners: impl IntoIterator<Item = ListenerId>, service: Service) -> Self {
        let service = Arc::new(service);
        let with = |id| (id, Arc::clone(&service));
        listeners.into_iter().map(with).collect()
    }
}

impl FromIterator<(ListenerId, Arc<Service>)> for Services {
    fn from_iter<I: IntoIterator<Item = (ListenerId, Arc<Service>)>>(all: I) -> Self {
        let mut services: Box<[_]> = all.into_iter().collect();
        services.sort_unstable_by_key(|&(id, _)| id);
        Self(services)
    }
}

impl Current {
    /// Begins with these.
    pub fn new(services: Services) -> Self {
        Self(Arc::new(ArcSwap::from_pointee(services)))
    }

    /// Serves whatever begins from now on by these.
    pub fn replace(&self, services: Services) {
        self.0.store(Arc::new(services));
    }

    /// Those of now. Not to be kept for long.
    pub(crate) fn now(&self) -> Guard<Arc<Services>> {
        self.0.load()
    }

    pub(crate) fn look(&self) -> Look {
        Cache::new(Arc::clone(&self.0))
    }
}
