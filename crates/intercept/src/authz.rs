//! Authorization of requests by access lists and by an outside check service.
//!
//! ```text
//! AuthzRequest ─▶ cache ─▶ circuit breaker ─▶ protocol ─▶ AuthzResponse ─▶ Verdict
//! ```
//!
//! The access lists ([`AccessRules`]) decide first: a service is asked only about requests that they allow.
//!
//! With several services, each has its own circuit breaker, and the next service is asked if one can't be reached. The breaker of
//! a policy that is evaluated in this process never opens, and that of the last service not because it answers with errors.
//!
//! A check always ends with a [`Verdict`] within the deadline: if the service fails, the failure mode decides. Decoding a
//! response is separate from receiving it, for tests and fuzzing: see [`ext_authz_reply`], [`forward_auth_reply`] and
//! [`opa_reply`].

mod approval;
pub(crate) mod authorize;
mod cache;
mod circuit_breaker;
mod config;
mod header_mutations;
mod injected_headers;
mod link;
mod metrics;
mod protocol;
mod request;
mod response;
pub(crate) mod rules;
mod verdict;
mod warnings;

use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use peername_server::access::client_semaphore::{FairPermit, FairSemaphore};
use prometheus_client::registry::Registry;
use tokio::time::{Instant, sleep, timeout_at};
use tracing::{info, warn};

pub use crate::audit::{LEARNED, TERMINAL};
pub(crate) use approval::Unapprovable;
pub use approval::{Approval, ApprovalFuture, ApprovalRequest, Approver};
pub use authorize::stages::{Allowed, AllowedTunnel, Prepared};
pub(crate) use config::CheckedBody;
pub use config::error::ConfigError;
pub use config::media_type::{MediaType, ParseMediaTypeError};
pub use config::sent_headers::SentHeaders;
pub use config::service::{Service, ServiceUrl, check_schemes_with_tls, check_url_forms};
pub use config::tls_files::CheckTlsFiles;
pub use config::{CheckConfig, FailureMode};
pub use header_mutations::HeaderMutations;
pub use injected_headers::{InjectedHeaders, Injection, InjectionError, ParseInjectionError};
pub use protocol::ProtocolConfig;
pub use protocol::ext_authz::decode as ext_authz_reply;
pub use protocol::ext_authz::messages as ext_authz_messages;
pub use protocol::forward_auth::decode as forward_auth_reply;
pub use protocol::opa::decode as opa_reply;
pub use request::AuthzRequest;
pub use response::{AuthzResponse, CacheLifetime};
pub use rules::{
    AccessRules, AccessRulesError, HTTP_PORTS, ParseRuleError, Rule, ShadowedRule, rule_for,
    rule_with_port,
};
pub use verdict::{AuthzError, DecidedBy, Decision, Denial, Verdict};

use crate::http_client;
pub use crate::http_client::tls::ClientTls;
pub use crate::request::buffered_body::BodyPrefix;
pub use crate::request::kind::RequestKind;
use cache::Cache;
use circuit_breaker::{CircuitBreaker, Transition};
use config::service::Backend;
use link::Link;
use metrics::CheckMetrics;
use protocol::PreparedCheck;
use warnings::{CheckWarnings, ServiceFailure};

/// The check services, for the whole process.
#[derive(Clone, Debug)]
pub struct CheckService {
    shared: Arc<Shared>,
}

/// What the workers share: no connections, which belong to the runtime that made them.
#[derive(Debug)]
struct Shared {
    config: CheckConfig,
    cache: Option<Cache>,
    /// One for each service, in the same order.
    breakers: Vec<CircuitBreaker>,
    in_flight: FairSemaphore,
    metrics: CheckMetrics,
    warnings: CheckWarnings,
}

/// One worker's client of the check services. Cloned for each of its tasks.
#[derive(Clone, Debug)]
pub struct CheckClient {
    shared: Arc<Shared>,
    /// One for each service, in the same order.
    links: Arc<[Link]>,
}

impl CheckService {
    /// Validates the configuration. Nothing is connected yet, and the service need not be up.
    pub fn new(config: CheckConfig) -> Result<Self, ConfigError> {
        Self::with_metrics(config, CheckMetrics::default())
    }

    /// Returns the service after a reload: this one, with its cache, if the configuration has not changed; otherwise a new one
    /// with the same metrics.
    pub fn successor(&self, config: CheckConfig) -> Result<Self, ConfigError> {
        if config == self.shared.config {
            return Ok(self.clone());
        }
        Self::with_metrics(config, self.shared.metrics.clone())
    }

    /// Sets the metric of suspended services, which after a reload still has the value of the previous service.
    pub(crate) fn update_suspended_metric(&self) {
        self.shared.update_suspended_metric();
    }

    fn with_metrics(config: CheckConfig, metrics: CheckMetrics) -> Result<Self, ConfigError> {
        config.validate()?;
        Ok(Self {
            shared: Arc::new(Shared {
                cache: config.cache.map(Cache::new),
                breakers: config
                    .services
                    .iter()
                    .map(|_| CircuitBreaker::default())
                    .collect(),
                in_flight: FairSemaphore::new(config.concurrency.get()),
                metrics,
                warnings: CheckWarnings::default(),
                config,
            }),
        })
    }

    /// A client for one worker, to be used on its runtime alone. All clients share cache, circuit breaker and metrics.
    pub fn client(&self) -> CheckClient {
        let config = &self.shared.config;
        // If an address does not answer, enough of the deadline is left to connect to the other services.
        let services = u32::try_from(config.services.len()).unwrap_or(u32::MAX);
        let connect_timeout = config.timeout / services.max(1);
        CheckClient {
            shared: Arc::clone(&self.shared),
            links: config
                .services
                .iter()
                .map(|service| Link::new(service, connect_timeout))
                .collect(),
        }
    }

    /// Whether this service made the client.
    pub(crate) fn has_client(&self, client: &CheckClient) -> bool {
        Arc::ptr_eq(&self.shared, &client.shared)
    }

    /// Whether a request whose check fails goes on (`--on-check-failure allow`).
    pub(crate) fn fails_open(&self) -> bool {
        self.shared.fails_open()
    }

    /// Probes whether one of the services can be asked.
    ///
    /// # Errors
    ///
    /// The first one's error: its circuit breaker is open, or it accepts no connection.
    pub async fn probe(&self) -> Result<(), AuthzError> {
        let mut first = None;
        for (service, breaker) in self.shared.services() {
            match probe(service, breaker).await {
                Ok(()) => return Ok(()),
                Err(error) => first = first.or(Some(error)),
            }
        }
        first.map_or(Ok(()), Err)
    }

    /// Spawns a task for each service. If the service can't be asked, the task logs a warning, and waits until it can.
    ///
    /// # Panics
    ///
    /// Outside of a runtime of tokio.
    pub fn await_services(&self) {
        for index in 0..self.shared.breakers.len() {
            let shared = Arc::clone(&self.shared);
            tokio::spawn(async move {
                if let Some((service, breaker)) = shared.services().nth(index) {
                    shared.await_service(service, breaker).await;
                }
            });
        }
    }

    /// Registers `peername_check_total`, `peername_check_seconds` and `peername_check_suspended`.
    pub fn register(&self, registry: &mut Registry) {
        self.shared.metrics.register(registry);
    }
}

impl CheckClient {
    /// How much of the body is sent to the service, for a request with these headers.
    pub(crate) fn checked_body(&self, headers: &HeaderMap) -> CheckedBody {
        let CheckConfig {
            body, body_exempt, ..
        } = &self.shared.config;
        match body {
            0 => CheckedBody::None,
            _ if body_exempt
                .iter()
                .any(|media_type| media_type.matches(headers)) =>
            {
                CheckedBody::Exempt
            }
            max => CheckedBody::Prefix(*max),
        }
    }

    /// Asks the service, within the configured timeout, whatever happens. Cancel-safe.
    pub async fn ask(&self, request: &AuthzRequest<'_>) -> Verdict {
        let started = Instant::now();
        let deadline = started + self.shared.config.timeout;
        let (decision, decided_by) = match self.decide(request, deadline).await {
            Ok(decided) => decided,
            Err(error) => self.shared.decide_failure(error),
        };
        let verdict = Verdict {
            decision,
            decided_by,
            took: started.elapsed(),
        };
        self.shared.metrics.count(&verdict);
        verdict
    }

    /// Gets the service's decision, from the cache if it has one.
    async fn decide(
        &self,
        request: &AuthzRequest<'_>,
        deadline: Instant,
    ) -> Result<(Decision, DecidedBy), AuthzError> {
        let config = &self.shared.config;
        if let Some(cache) = &self.shared.cache
            && let Some(key) = request.to_key(&config.protocol.sent)
        {
            // The check may already be in flight on another worker. If that worker is busy, the check's own timeout comes late,
            // so the deadline is enforced here as well.
            let cached = cache.get(key, || self.fetch(request, deadline));
            return timeout_at(deadline, cached)
                .await
                .unwrap_or(Err(AuthzError::Timeout(config.timeout)));
        }
        let response = self.fetch(request, deadline).await?;
        Ok((response.decision, DecidedBy::Service))
    }

    /// Asks the services in turn, until one can be reached.
    async fn fetch(
        &self,
        request: &AuthzRequest<'_>,
        deadline: Instant,
    ) -> Result<AuthzResponse, AuthzError> {
        let mut failure = AuthzError::Suspended;
        let mut first_failure = None;
        for (link, (service, breaker)) in self.links.iter().zip(self.shared.services()) {
            let result = self
                .fetch_from(link, service, breaker, request, deadline)
                .await;
            match result {
                // The error of another service, if there is one, is more specific.
                Err(AuthzError::Suspended) => {}
                Err(error) if error.is_unreachable() => failure = error,
                Err(error) => return Err(error),
                Ok(response) => {
                    if let Some(failure) = &first_failure {
                        self.shared.warnings.warn_of_failover(failure, service);
                    }
                    return Ok(response);
                }
            }
            first_failure.get_or_insert_with(|| ServiceFailure {
                service,
                error: failure.clone(),
            });
        }
        Err(failure)
    }

    /// Asks one service.
    async fn fetch_from(
        &self,
        link: &Link,
        service: &Service,
        breaker: &CircuitBreaker,
        request: &AuthzRequest<'_>,
        deadline: Instant,
    ) -> Result<AuthzResponse, AuthzError> {
        let shared = &*self.shared;
        let check: PreparedCheck<'_> = link.prepare(request, &shared.config.protocol)?;
        let arrived = Instant::now();
        let _permit = shared.acquire_permit(breaker, request, deadline).await?;
        let acquired = breaker.acquire(Instant::now());
        let breaker_permit = acquired.ok_or(AuthzError::Suspended)?;
        let generation = link.generation();
        let started = Instant::now();
        let is_late = started - arrived > shared.config.timeout / 8;
        let result = match timeout_at(deadline, check(deadline)).await {
            // Too late to blame the service, which may end at the deadline, too, with an error: a gRPC service knows it.
            Ok(Err(_)) | Err(_) if is_late && Instant::now() >= deadline => {
                // With half of the timeout it may hang; if it is only slow, a new connection does no harm.
                if deadline - started >= shared.config.timeout / 2 {
                    link.abandon(generation);
                }
                Err(AuthzError::Busy(shared.config.concurrency.get()))
            }
            Ok(result) => result,
            Err(_) => {
                link.abandon(generation);
                Err(AuthzError::Timeout(shared.config.timeout))
            }
        };
        shared.metrics.observe_duration(started.elapsed());
        let transition = match (link, &result) {
            // A policy fails because of a single request or a busy CPU. A pause would fail all other requests, too.
            (Link::Policy(_), _) | (_, Err(AuthzError::Busy(_))) => Transition::Unchanged,
            (_, Ok(_)) => breaker_permit.succeeded(),
            // A single request may cause it, and no other service decides. A gRPC service that hangs fails at the deadline.
            (_, Err(error))
                if shared.is_last(service) && error.is_response() && Instant::now() < deadline =>
            {
                breaker_permit.succeeded()
            }
            (_, Err(_)) => breaker_permit.failed(Instant::now()),
        };
        shared.log_transition(service, transition);
        let response = result?;
        shared
            .warnings
            .warn_of_refused_mutations(&response.decision);
        Ok(response)
    }
}

impl Shared {
    /// The services with their circuit breakers.
    fn services(&self) -> impl Iterator<Item = (&Service, &CircuitBreaker)> {
        self.config.services.iter().zip(&self.breakers)
    }

    fn is_last(&self, service: &Service) -> bool {
        matches!(&*self.config.services, [.., last] if std::ptr::eq(last, service))
    }

    fn fails_open(&self) -> bool {
        self.config.on_failure == FailureMode::Allow
    }

    async fn await_service(&self, service: &Service, breaker: &CircuitBreaker) {
        let Err(error) = probe(service, breaker).await else {
            return;
        };
        let consequence = match (self.config.services.len(), self.config.on_failure) {
            (2.., _) => "the others are asked",
            (_, FailureMode::Allow) => "requests go on unchecked until it can",
            (_, FailureMode::Deny) => "requests are denied until it can",
        };
        warn!("the check service at {service} can't be asked: {error}; {consequence}");
        while probe(service, breaker).await.is_err() {
            sleep(PROBE_INTERVAL).await;
        }
        info!("the check service at {service} can be asked now");
    }

    /// Acquires a permit for one check in flight. Waits until the deadline, but not at all while the circuit breaker is open.
    async fn acquire_permit(
        &self,
        breaker: &CircuitBreaker,
        request: &AuthzRequest<'_>,
        deadline: Instant,
    ) -> Result<FairPermit, AuthzError> {
        if breaker.is_open(Instant::now()) {
            return Err(AuthzError::Suspended);
        }
        match timeout_at(deadline, self.in_flight.acquire(request.client.ip())).await {
            Ok(Some(permit)) => Ok(permit),
            _ => Err(AuthzError::Busy(self.config.concurrency.get())),
        }
    }

    /// Decides by the configured failure mode, after the check failed.
    fn decide_failure(&self, error: AuthzError) -> (Decision, DecidedBy) {
        let allows = self.fails_open();
        let warnings = &self.warnings;
        warnings.warn_of_failure(&self.config.services, &error, allows);
        match allows {
            true => (Decision::Allow(Arc::default()), DecidedBy::FailOpen(error)),
            false => (
                Decision::Deny(Arc::new((&error).into())),
                DecidedBy::Failure(error),
            ),
        }
    }

    fn log_transition(&self, service: &Service, transition: Transition) {
        match transition {
            Transition::Unchanged => return,
            Transition::Opened => warn!(
                %service,
                "the check service failed too often and is not asked for a second"
            ),
            Transition::Closed => info!(%service, "the check service answers again"),
        }
        self.update_suspended_metric();
    }

    fn update_suspended_metric(&self) {
        let suspended = self
            .breakers
            .iter()
            .filter(|breaker| breaker.is_suspended())
            .count();
        self.metrics.set_suspended(suspended);
    }
}

/// Probes whether a service can be asked.
async fn probe(service: &Service, breaker: &CircuitBreaker) -> Result<(), AuthzError> {
    if breaker.is_open(Instant::now()) {
        return Err(AuthzError::Suspended);
    }
    match &service.backend {
        Backend::Remote(remote) => {
            let version = remote.protocol.http_version;
            let probed = http_client::probe(&remote.endpoint, version, PROBE_TIMEOUT).await;
            probed.map_err(AuthzError::from)
        }
        Backend::Policy(_) => Ok(()),
    }
}

/// The timeout of a probe, which connects to the service outside of a check.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
/// The time between two probes of a service that can't be asked yet.
const PROBE_INTERVAL: Duration = Duration::from_secs(2);
