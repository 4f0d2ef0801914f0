//! The service of a listener: its rules, and the connector to its backend.

use std::sync::Arc;

use peername_server::workers::services;

use crate::connect::Connector;
use crate::policy::rules::Rules;
use crate::telemetry::counters::Counters;

/// The rules of some listeners, and the connector to their backend.
#[derive(Debug)]
pub struct Service {
    pub(crate) rules: Rules,
    pub(crate) connector: Connector,
}

/// The service of every listener.
pub type Services = services::Services<Service>;

/// Shares the services that are in force: a reload replaces them.
pub type ServiceHandle = services::ServiceHandle<Service>;

impl Service {
    /// A service with these rules. Fails as [`Connector::new`] does.
    pub fn new(rules: Rules, counters: &Arc<Counters>) -> peername_sys::Result<Self> {
        let upstream = rules.config.upstream.clone();
        let connector = Connector::new(upstream, Arc::clone(counters))?;
        Ok(Self { rules, connector })
    }
}
