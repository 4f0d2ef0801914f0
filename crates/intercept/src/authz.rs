//! May this request go on? An outside service is asked.
//!
//! ```text
//! Question ─▶ cache ─▶ breaker ─▶ ext_authz | forwardAuth | OPA ─▶ Answer ─▶ Verdict
//! ```
//!
//! There is always a [`Verdict`], and always in time: what the service does wrong, and that it isn't there, is a
//! denial. Reading an answer is apart from getting it: [`ext_authz_reply`], [`forward_auth_reply`] and
//! [`opa_reply`] are functions of what came.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use envoy_types::pb::envoy::service::auth::v3::CheckRequest;
use http::Request;
use peername_observe::throttle::Throttle;
use prometheus_client::registry::Registry;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, sleep, timeout_at};
use tracing::{info, warn};

pub(crate) mod authorize;
mod cache;
mod circuit_breaker;
mod config;
mod header_mutations;
mod metrics;
mod protocol;
mod request;
mod response;
mod transport;
mod verdict;

pub use config::{CheckConfig, ConfigError, OnFailure, Sent, Service};
pub use header_mutations::Changes;
pub use protocol::ext_authz::read as ext_authz_reply;
pub use protocol::forward_auth::read as forward_auth_reply;
pub use protocol::opa::read as opa_reply;
pub use request::{Authority, Kind, Prefix, Question};
pub use response::{Answer, Keep};
pub use verdict::{Decision, Denial, Failure, How, Verdict};

use cache::{Cache, Key};
use circuit_breaker::{Breaker, Turned};
use metrics::Counters;
use protocol::{ext_authz, forward_auth, opa};
use transport::{Transport, Version};

/// One check service, for the whole process.
#[derive(Clone, Debug)]
pub struct Check {
    shared: Arc<Shared>,
}

/// What workers share: no connections, which belong to the runtime that made them.
#[derive(Debug)]
struct Shared {
    config: CheckConfig,
    cache: Option<Cache>,
    breaker: Breaker,
    open: Semaphore,
    counters: Counters,
    failed: Throttle,
    refused: Throttle,
}

/// One worker's way to the service. Cloned for each of its tasks.
#[derive(Clone, Debug)]
pub struct Client {
    shared: Arc<Shared>,
    transport: Arc<Transport>,
}

/// A question as it is written to the service.
enum Written {
    Grpc(Box<CheckRequest>),
    Http(Box<Request<Bytes>>),
}

impl Check {
    /// Makes one; nothing is connected yet, and the service need not be there.
    ///
    /// # Errors
    ///
    /// A configuration that can't mean what it says.
    pub fn new(config: CheckConfig) -> Result<Self, ConfigError> {
        config.validate()?;
        Ok(Self {
            shared: Arc::new(Shared {
                cache: config.cache.map(Cache::new),
                breaker: Breaker::default(),
                open: Semaphore::new(config.concurrency.get()),
                counters: Counters::default(),
                failed: Throttle::new(BETWEEN_WARNINGS),
                refused: Throttle::new(BETWEEN_WARNINGS),
                config,
            }),
        })
    }

    /// The way to the service for one worker, to be used on its runtime alone. Cache, breaker and counters are
    /// everybody's.
    pub fn client(&self) -> Client {
        let config = &self.shared.config;
        let version = match config.service {
            Service::Grpc(_) => Version::Http2,
            Service::ForwardAuth(_) | Service::Opa(_) => Version::Http1,
        };
        Client {
            shared: Arc::clone(&self.shared),
            transport: Arc::new(Transport::new(version, config.timeout)),
        }
    }

    /// Whether the service can be asked: it has its pause, or nobody accepts where it should be.
    ///
    /// # Errors
    ///
    /// Why it can't.
    pub async fn reach(&self) -> Result<(), Failure> {
        if self.shared.breaker.rests(Instant::now()) {
            return Err(Failure::Suspended);
        }
        transport::reach(self.shared.config.service.uri(), REACH).await
    }

    /// Tries whether the service is there, says so if it is not, and goes on trying until it is.
    pub async fn await_service(self) {
        let Err(why) = self.reach().await else {
            return;
        };
        let then = match self.shared.config.on_failure {
            OnFailure::Allow => "requests go on unchecked until it can",
            OnFailure::Deny => "requests are denied until it can",
        };
        let service = self.shared.config.service.uri();
        warn!("the check service at {service} can't be asked: {why}; {then}");
        while self.reach().await.is_err() {
            sleep(REACH_AGAIN).await;
        }
        info!("the check service at {service} can be asked now");
    }

    /// Octets of a request's body that a question should have.
    pub fn body(&self) -> usize {
        self.shared.config.body
    }

    /// Adds `peername_check_total`, `peername_check_seconds` and `peername_check_suspended`.
    pub fn register(&self, registry: &mut Registry) {
        self.shared.counters.register(registry);
    }
}

impl Client {
    /// Asks. Within the configured timeout, whatever happens; dropping the future is fine.
    pub async fn ask(&self, question: &Question<'_>) -> Verdict {
        let begun = Instant::now();
        let until = begun + self.shared.config.timeout;
        let (decision, how) = match self.decide(question, until).await {
            Ok((decision, true)) => (decision, How::Cached),
            Ok((decision, false)) => (decision, How::Asked),
            Err(failure) => self.shared.instead(failure),
        };
        let verdict = Verdict {
            decision,
            how,
            took: begun.elapsed(),
        };
        self.shared.counters.count(&verdict);
        verdict
    }

    /// A decision of the service's, and whether it was there already.
    async fn decide(
        &self,
        question: &Question<'_>,
        until: Instant,
    ) -> Result<(Decision, bool), Failure> {
        let config = &self.shared.config;
        let key = || Key::of(question, &config.sent);
        let cached = self
            .shared
            .cache
            .as_ref()
            .and_then(|cache| Some((cache, key()?)));
        let Some((cache, key)) = cached else {
            return Ok((self.fetch(question, until).await?.decision, false));
        };
        // Whoever asks for all of us may be on a worker that is busy.
        let result = timeout_at(until, cache.get(key, || self.fetch(question, until))).await;
        result.unwrap_or(Err(Failure::Timeout(config.timeout)))
    }

    /// Asks the service itself.
    async fn fetch(&self, question: &Question<'_>, until: Instant) -> Result<Answer, Failure> {
        let shared = &*self.shared;
        let written = shared.write(question)?;
        let _permit = shared.permit(until).await?;
        let pass = shared
            .breaker
            .pass(Instant::now())
            .ok_or(Failure::Suspended)?;
        let (generation, _) = self.transport.pool();
        let begun = Instant::now();
        let result = timeout_at(until, self.exchange(written, until)).await;
        shared.counters.took(begun.elapsed());
        let result = result.unwrap_or_else(|_| {
            self.transport.give_up(generation);
            Err(Failure::Timeout(shared.config.timeout))
        });
        shared.turned(match &result {
            Ok(_) => pass.answered(),
            Err(_) => pass.failed(Instant::now()),
        });
        let answer = result?;
        shared.look_at_changes(&answer.decision);
        Ok(answer)
    }

    async fn exchange(&self, written: Written, until: Instant) -> Result<Answer, Failure> {
        let config = &self.shared.config;
        let request = match written {
            Written::Http(request) => request,
            Written::Grpc(request) => {
                let (_, pool) = self.transport.pool();
                let left = until.saturating_duration_since(Instant::now());
                let call = ext_authz::call(&pool, config.service.uri(), *request, left);
                return ext_authz::read(call.await?);
            }
        };
        let (head, body) = self.transport.exchange(&request).await?;
        match config.service {
            Service::Opa(_) => opa::read(head.status, &body),
            _ => forward_auth::read(head.status, &head.headers, body, &config.take),
        }
    }
}

impl Shared {
    fn write(&self, question: &Question<'_>) -> Result<Written, Failure> {
        let sent = &self.config.sent;
        Ok(match &self.config.service {
            Service::Grpc(_) => Written::Grpc(Box::new(ext_authz::request(question, sent))),
            Service::Opa(uri) => Written::Http(Box::new(opa::request(uri, question, sent))),
            Service::ForwardAuth(uri) => {
                Written::Http(Box::new(forward_auth::request(uri, question, sent)?))
            }
        })
    }

    /// Leave to have one more question open. Waits for it, but not for a service that is not asked at all.
    async fn permit(&self, until: Instant) -> Result<SemaphorePermit<'_>, Failure> {
        if self.breaker.rests(Instant::now()) {
            return Err(Failure::Suspended);
        }
        let busy = || Failure::Busy(self.config.concurrency.get());
        let permit = timeout_at(until, self.open.acquire()).await;
        permit.map_err(|_| busy())?.map_err(|_| busy())
    }

    /// What happens when nobody decides.
    fn instead(&self, failure: Failure) -> (Decision, How) {
        let goes_on = self.config.on_failure == OnFailure::Allow;
        if let Some(suppressed) = self.failed.pass() {
            let code = failure.code();
            match goes_on {
                true => warn!(code, suppressed, "a request goes on unchecked: {failure}"),
                false => warn!(code, suppressed, "a request is denied unchecked: {failure}"),
            }
        }
        match goes_on {
            true => (Decision::Allow(Arc::default()), How::FailedOpen(failure)),
            false => (
                Decision::Deny(Arc::new((&failure).into())),
                How::Failed(failure),
            ),
        }
    }

    fn turned(&self, turned: Turned) {
        match turned {
            Turned::Not => return,
            Turned::Open => {
                warn!("the check service failed too often and is not asked for a while");
            }
            Turned::Closed => info!("the check service answers again"),
        }
        self.counters.suspended(turned == Turned::Open);
    }

    fn look_at_changes(&self, decision: &Decision) {
        let Decision::Allow(changes) = decision else {
            return;
        };
        if changes.refused() > 0
            && let Some(suppressed) = self.refused.pass()
        {
            let refused = changes.refused();
            warn!(
                refused,
                suppressed, "the check service asked for changes of headers that it may not make"
            );
        }
    }
}

/// For a connection to the service, with nobody waiting for an answer.
const REACH: Duration = Duration::from_secs(2);
const REACH_AGAIN: Duration = Duration::from_secs(2);
/// Failing is constant when it happens.
const BETWEEN_WARNINGS: Duration = Duration::from_secs(10);
