//! The services of a worker's listeners. Sessions outlive a listener that a reload removes, so its last service is kept.

use std::sync::Arc;

use peername_server::addr::LocalAddr;
use peername_server::listeners::ListenerId;
use peername_server::workers::services::{ServiceCache, ServiceHandle};

use crate::outcome::Failure;

/// The services of the listeners of one worker.
pub(super) struct KnownServices<S> {
    cache: ServiceCache<S>,
    listeners: Arc<[(ListenerId, LocalAddr)]>,
    /// The last known service of each listener.
    last: Vec<Option<Arc<S>>>,
}

impl<S> KnownServices<S> {
    /// The services of these listeners now.
    pub(super) fn new(
        services: &ServiceHandle<S>,
        listeners: Arc<[(ListenerId, LocalAddr)]>,
    ) -> Self {
        let mut known = Self {
            cache: services.cache(),
            last: listeners.iter().map(|_| None).collect(),
            listeners,
        };
        known.refresh();
        known
    }

    /// Notes the services that a reload has replaced, even for listeners that receive nothing. To be called once a second.
    pub(super) fn refresh(&mut self) {
        for number in 0..self.listeners.len() {
            let _ = self.current(number);
        }
    }

    /// The current service of a listener. For a listener that a reload has removed, its last one: open sessions
    /// continue with it.
    pub(super) fn current(&mut self, number: usize) -> Result<&S, Failure> {
        let (id, _) = self.listener(number)?;
        let last = self.last.get_mut(number).ok_or(Failure::NoService)?;
        if let Some(current) = self.cache.load().get(id)
            && last.as_ref().is_none_or(|last| !Arc::ptr_eq(last, current))
        {
            *last = Some(Arc::clone(current));
        }
        last.as_deref().ok_or(Failure::NoService)
    }

    /// The last known service of a listener.
    pub(super) fn last(&self, number: usize) -> Option<&Arc<S>> {
        self.last.get(number)?.as_ref()
    }

    /// The listener with this index.
    pub(super) fn listener(&self, number: usize) -> Result<(ListenerId, LocalAddr), Failure> {
        self.listeners
            .get(number)
            .copied()
            .ok_or(Failure::NoService)
    }
}
