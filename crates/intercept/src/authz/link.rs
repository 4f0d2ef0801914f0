//! One worker's client of one check service.

use std::sync::Arc;
use std::time::Duration;

use super::config::service::{Backend, Remote, Service};
use super::protocol::rego::Policy;
use super::protocol::{PreparedCheck, ProtocolConfig};
use super::request::AuthzRequest;
use super::verdict::AuthzError;
use crate::http_client::{Generation, HttpClient};

/// One worker's client of one check service.
#[derive(Clone, Debug)]
pub(crate) enum Link {
    /// A service in another process.
    Remote(Remote, Arc<HttpClient>),
    /// A policy that is evaluated in this process.
    Policy(Arc<Policy>),
}

impl Link {
    pub(crate) fn new(service: &Service, connect_timeout: Duration) -> Self {
        match &service.backend {
            Backend::Remote(remote) => {
                let version = remote.protocol.http_version;
                let client = HttpClient::new(&remote.endpoint, version, connect_timeout);
                Self::Remote(remote.clone(), Arc::new(client))
            }
            Backend::Policy(policy) => Self::Policy(Arc::clone(policy)),
        }
    }

    /// Prepares the check of a request ([`Protocol::prepare`](super::protocol::Protocol::prepare)).
    pub(crate) fn prepare<'a>(
        &'a self,
        request: &'a AuthzRequest<'a>,
        config: &'a ProtocolConfig,
    ) -> Result<PreparedCheck<'a>, AuthzError> {
        match self {
            Self::Remote(Remote { protocol, endpoint }, client) => {
                (protocol.prepare)(client, &endpoint.uri, request, config)
            }
            Self::Policy(policy) => Ok(Box::new(move |deadline| {
                Box::pin(policy.decide(request, &config.sent, deadline))
            })),
        }
    }

    /// Identifies the connections that a check will use.
    pub(crate) fn generation(&self) -> Option<Generation> {
        match self {
            Self::Remote(_, client) => Some(client.pool().0),
            Self::Policy(_) => None,
        }
    }

    /// Abandons the connections on which a check timed out.
    pub(crate) fn abandon(&self, generation: Option<Generation>) {
        if let (Self::Remote(_, client), Some(generation)) = (self, generation) {
            client.abandon(generation);
        }
    }
}
