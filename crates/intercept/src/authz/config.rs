//! The configuration of a check service.

pub(crate) mod error;
pub(crate) mod media_type;
pub(crate) mod sent_headers;
pub(crate) mod service;
pub(crate) mod tls_files;

use std::num::NonZeroUsize;
use std::time::Duration;

use super::header_mutations::is_mutable;
use super::protocol::ProtocolConfig;
use error::ConfigError;
use media_type::MediaType;
use service::{Backend, Service};

/// Check services, and how they are asked.
#[derive(Clone, Debug, PartialEq)]
pub struct CheckConfig {
    /// The services; if one can't be reached, the next is asked.
    pub services: Vec<Service>,
    /// The deadline, from the request to the end of the response, whatever happens in between.
    pub timeout: Duration,
    /// What happens to a request when the check fails.
    pub on_failure: FailureMode,
    /// How long a response is cached for equal requests; `None` for no cache.
    pub cache: Option<Duration>,
    /// Checks in flight at a time, of all workers together, two thirds of them for one client. Others wait, within their deadline.
    pub concurrency: NonZeroUsize,
    /// Bytes of the request's body that the service sees; 0 for none.
    pub body: usize,
    /// Media types of bodies that the service does not see: streams.
    pub body_exempt: Vec<MediaType>,
    /// What a protocol sends and takes.
    pub protocol: ProtocolConfig,
}

impl CheckConfig {
    /// The defaults: 500 ms, deny on failure, no cache, 256 checks at a time, no body, and no credentials.
    pub fn new(services: Vec<Service>) -> Self {
        Self {
            services,
            timeout: Duration::from_millis(500),
            on_failure: FailureMode::Deny,
            cache: None,
            concurrency: NonZeroUsize::new(256).expect("not zero"),
            body: 0,
            body_exempt: Vec::new(),
            protocol: ProtocolConfig::default(),
        }
    }

    /// Pins the Unix socket that is at each service's path now, if this process's user could put another one there. This is for
    /// requests of programs that run as this user. A service that makes its socket anew is not reached any more, so its checks
    /// fail.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Socket`]: nothing is at the path.
    pub fn pin_sockets(&mut self) -> Result<(), ConfigError> {
        self.services.iter_mut().try_for_each(Service::pin_socket)
    }

    /// Refuses a setting that a service's protocol does not support, or that would have no effect.
    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        if self.services.is_empty() {
            return Err(ConfigError::NoService);
        }
        if self.timeout.is_zero() {
            return Err(ConfigError::ZeroTimeout);
        }
        if self.body > 0 && !self.services.iter().all(Service::sends_body) {
            return Err(ConfigError::Body);
        }
        if !self.protocol.take.is_empty()
            && !self.services.iter().all(Service::takes_response_headers)
        {
            return Err(ConfigError::ResponseHeaders);
        }
        match self.protocol.take.iter().find(|name| !is_mutable(name)) {
            Some(name) => Err(ConfigError::ImmutableHeader(name.clone())),
            None => Ok(()),
        }
    }
}

impl Service {
    /// Whether it can be sent the beginning of a request's body.
    fn sends_body(&self) -> bool {
        match &self.backend {
            Backend::Remote(remote) => remote.protocol.sends_body,
            Backend::Policy(_) => true,
        }
    }

    /// Whether a request can take headers from its responses.
    fn takes_response_headers(&self) -> bool {
        match &self.backend {
            Backend::Remote(remote) => remote.protocol.takes_response_headers,
            Backend::Policy(_) => false,
        }
    }
}

/// How much of a request's body is sent to a check service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CheckedBody {
    /// Nothing, because the configuration asks for no bodies.
    None,
    /// Nothing, because of its media type.
    Exempt,
    /// Its first bytes, at most this many.
    Prefix(usize),
}

/// What happens to a request when the check fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FailureMode {
    /// The request is denied.
    #[default]
    Deny,
    /// The request is let through unchecked.
    Allow,
}

#[cfg(test)]
mod tests {
    use http::header::{self, HeaderName};

    use super::service::ServiceUrl;
    use super::*;

    fn service(url: &str) -> Service {
        url.parse::<ServiceUrl>().unwrap().open(None).unwrap()
    }

    #[test]
    fn header_of_the_framing_or_connection_can_not_be_taken() {
        let config_taking = |name: &'static str| CheckConfig {
            protocol: ProtocolConfig {
                take: vec![header::AUTHORIZATION, HeaderName::from_static(name)],
                ..ProtocolConfig::default()
            },
            ..CheckConfig::new(vec![service("http://auth.test/verify")])
        };
        for name in [
            "host",
            "content-length",
            "transfer-encoding",
            "connection",
            "keep-alive",
            "proxy-connection",
            "te",
            "trailer",
            "upgrade",
            "expect",
            "proxy-authorization",
        ] {
            let error = ConfigError::ImmutableHeader(HeaderName::from_static(name));
            assert_eq!(config_taking(name).validate(), Err(error));
        }
        assert_eq!(config_taking("x-user").validate(), Ok(()));
    }
}
