//! Requests to origins: sends an [`Allowed`] request, and returns the head of its response.

mod client_leases;
pub mod config;
mod connection;
mod connection_cap;
mod connection_permit;
mod dialer;
mod error;
mod happy_eyeballs;
mod idle_pool;
mod message_head;
// The audit record knows this module alone: through a re-export it would know all of `upstream`.
pub(crate) mod request_body;
mod resolver;
mod retry;
pub mod trust;
pub mod upstream_proxy;

use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use http::{HeaderValue, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use moka::sync::Cache;
use prometheus_client::registry::Registry;
use rustls::pki_types::CertificateDer;
use rustls_native_certs::CertificateResult;
use tokio::time::{Instant, sleep_until};

use crate::authz::{AccessRules, Allowed, AllowedTunnel};
use crate::host::HostPort;
use crate::policy::destination::{Requested, SharedRules};
use crate::request::id::Id;
pub use crate::request::received_body::ReceivedBodyError;

pub use client_leases::ClientLeases;
pub(crate) use client_leases::Lease;
use config::UpstreamConfig;
pub(crate) use connection::ConnectionInfo;
pub use connection::OpenTunnel;
use dialer::Dialer;
pub use error::FailedAttempt;
pub(crate) use error::UpstreamError;
use idle_pool::{IdlePool, PoolKey};
pub(crate) use message_head::is_streaming;
use message_head::{RequestForm, adapt_to_connection, authenticates_connection, framing_error};
use request_body::SendProgress;
pub use request_body::{RequestBody, RequestBodyError};
use retry::{RetryBudgets, RetryCopy};
use trust::{OriginTls, TrustError};

/// The client side of the proxy, shared by the workers; each worker has connections of its own.
#[derive(Debug)]
pub struct Upstream {
    dialer: Dialer,
    /// Whether an origin chose HTTP/2 when both protocols were offered. The key includes the address of a redirected
    /// connection: the client chose it, and another server may be there.
    speaks_http2: Cache<(HostPort, Option<IpAddr>), bool>,
    retries: RetryBudgets,
}

/// The head of a response, and the connection on which it came.
#[derive(Debug)]
pub struct Sent {
    pub(crate) response: Response<Incoming>,
    pub(crate) lease: Lease,
    pub(crate) info: Arc<ConnectionInfo>,
    pub(crate) reused: bool,
}

/// Why an attempt failed, and the request, if it may be sent again.
#[derive(Debug)]
struct FailedExchange {
    cause: FailedAttempt,
    retry: Option<Box<Request<RequestBody>>>,
}

impl From<FailedAttempt> for FailedExchange {
    fn from(cause: FailedAttempt) -> Self {
        Self { cause, retry: None }
    }
}

impl Upstream {
    /// Creates the client side. Origins are verified by the roots `native` of this host and those of `config`, and never by the
    /// certificates `own_ca` of the proxy's own authority.
    pub fn new(
        config: UpstreamConfig,
        native: &CertificateResult,
        own_ca: &[CertificateDer<'_>],
    ) -> Result<Self, TrustError> {
        let tls = OriginTls::new(native, &config.extra_ca, own_ca)?;
        Ok(Self::with_dialer(Dialer::new(config, tls)))
    }

    /// Replaces the access lists that admit destinations. Connections that the old lists have admitted take no further
    /// requests, not even of clients that are connected now. Returns the lists for the successor, which shares them.
    pub(crate) fn replace_rules(&self, rules: Option<Arc<AccessRules>>) -> SharedRules {
        let shared = &self.config().destinations.rules;
        shared.store(rules);
        self.dialer.renew_connections();
        shared.clone()
    }

    /// Whether the proxy itself listens at this address.
    pub(crate) fn is_own_listener(&self, addr: SocketAddr) -> bool {
        self.config()
            .destinations
            .is_own_listener(addr.ip(), addr.port())
    }

    /// Decides on a destination that is an address. A name is not decided on, as its addresses are not known yet.
    pub(crate) fn admit_address(&self, to: &HostPort) -> Result<(), UpstreamError> {
        self.dialer.admit_address(Requested::plain(to))
    }

    /// The client side after a reload. It shares the connection cap, and does not reuse the connections of this one.
    pub(crate) fn successor(&self, config: UpstreamConfig, tls: OriginTls) -> Self {
        Self::with_dialer(self.dialer.successor(config, tls))
    }

    fn with_dialer(dialer: Dialer) -> Self {
        Self {
            dialer,
            speaks_http2: Cache::builder()
                .max_capacity(MAX_REMEMBERED_ORIGINS)
                .time_to_live(PROTOCOL_LIFETIME)
                .build(),
            retries: RetryBudgets::new(MAX_REMEMBERED_ORIGINS),
        }
    }

    /// Registers the gauges of the connections to origins, which all successors share.
    pub(crate) fn register(&self, registry: &mut Registry) {
        self.dialer.register(registry);
    }

    /// Whether an origin is known to speak HTTP/1.1 only.
    pub(crate) fn is_http1_only(&self, origin: &HostPort, original_dst: Option<IpAddr>) -> bool {
        self.speaks_http2.get(&(origin.clone(), original_dst)) == Some(false)
    }

    /// Creates the empty set of leases for a client connection that is served on this thread.
    pub(crate) fn new_leases(id: Id, client: IpAddr) -> Arc<ClientLeases> {
        Arc::new(ClientLeases::new(id, client, POOL.with(Arc::clone)))
    }

    /// Opens a tunnel: a connection to the origin without TLS of the proxy's own.
    ///
    /// # Errors
    ///
    /// The connection cap is reached; the origin can't be resolved or reached, or is not an allowed destination.
    pub async fn open_tunnel(&self, tunnel: &AllowedTunnel) -> Result<OpenTunnel, FailedAttempt> {
        self.dialer.open_tunnel(tunnel).await
    }

    /// Sends a request (its URI has a path only), and waits for the head of the response.
    ///
    /// A request that the origin has not processed, or that may be repeated, is retried once, on a new connection; see
    /// `RetryCopy::after`. Both attempts go to the target that was checked, and share the time limit of one attempt.
    ///
    /// # Errors
    ///
    /// The origin can't be reached, its certificate is wrong, or it gives no valid response in time.
    pub async fn send(
        &self,
        leases: &Arc<ClientLeases>,
        allowed: Allowed,
        body: RequestBody,
    ) -> Result<Sent, FailedAttempt> {
        let mut key = self.dialer.request_key(&allowed);
        let progress = &Arc::clone(body.progress());
        let request = allowed.into_request(body);
        self.retries.deposit(&key.to);
        if key.http2 && self.is_http1_only(&key.to, key.original_dst) {
            key.http2 = false;
        }
        let started = Instant::now();
        let lease = match Lease::reuse(leases, &key) {
            Some(lease) => lease,
            // The future of a TLS handshake is large, and rarely needed. Boxed, it takes no memory in the future of each request.
            None => Box::pin(self.open_lease(leases, &key)).await?,
        };
        let failed = match self.exchange(lease, &key, request, progress, started).await {
            Ok(sent) => return Ok(sent),
            Err(failed) => failed,
        };
        match failed.retry {
            Some(retry) if self.retries.withdraw(&key.to) => {
                if matches!(
                    failed.cause.error,
                    UpstreamError::Unprocessed(h2::Reason::HTTP_1_1_REQUIRED)
                ) {
                    self.speaks_http2
                        .insert((key.to.clone(), key.original_dst), false);
                    key.http2 = false;
                }
                Box::pin(self.retry(leases, &key, *retry, progress, started)).await
            }
            _ => Err(failed.cause),
        }
    }

    async fn retry(
        &self,
        leases: &Arc<ClientLeases>,
        key: &PoolKey,
        request: Request<RequestBody>,
        progress: &SendProgress,
        started: Instant,
    ) -> Result<Sent, FailedAttempt> {
        progress.retried.store(true, Relaxed);
        let lease = self.open_lease(leases, key).await?;
        self.exchange(lease, key, request, progress, started)
            .await
            .map_err(|failed| failed.cause)
    }

    /// Sends a request on a leased connection, and waits for its response. The timeout counts from `started`.
    async fn exchange(
        &self,
        mut lease: Lease,
        key: &PoolKey,
        mut request: Request<RequestBody>,
        progress: &SendProgress,
        started: Instant,
    ) -> Result<Sent, FailedExchange> {
        let reused = lease.is_reused();
        let info = Arc::clone(lease.info());
        *progress.tried.lock() = Some(info.fields.addr);
        set_expectation(&mut request);
        if authenticates_connection(request.headers(), &header::AUTHORIZATION) {
            lease.make_private();
        }
        let form = RequestForm {
            http2: lease.is_http2(),
            absolute: info.absolute_form,
        };
        adapt_to_connection(&mut request, key, form);
        if let Some(proxy) = self.config().proxy.as_ref()
            && info.absolute_form
        {
            proxy.add_proxy_headers(request.headers_mut());
        }
        let copy = (reused || lease.is_http2()).then(|| RetryCopy::new(&request));
        let limit = self
            .config()
            .response_timeouts
            .get(&key.to.host)
            .unwrap_or_else(|| self.config().response_timeout);
        let response = match self
            .wait_response(&mut lease, request, progress, started, limit)
            .await
        {
            Ok(response) => response,
            Err((error, unsent)) => {
                if matches!(error, UpstreamError::Unprocessed(_)) {
                    lease.retire();
                }
                // The origin has closed the idle connection before the request was written, so the request is sent again as it
                // is. The copy is not used, because it would begin a new attempt, whose body supersedes that of the unsent
                // request.
                let retry = match unsent.filter(|_| reused) {
                    Some(unsent) => {
                        copy.into_iter().for_each(RetryCopy::discard);
                        Some(unsent)
                    }
                    None => copy
                        .and_then(|copy| copy.after(&error, reused))
                        .map(Box::new),
                };
                return Err(FailedExchange {
                    cause: error.at(info.fields.addr),
                    retry,
                });
            }
        };
        if let Some(copy) = copy {
            copy.discard();
        }
        if let Some(error) = framing_error(response.headers()) {
            return Err(UpstreamError::BadResponse(error.to_owned())
                .at(info.fields.addr)
                .into());
        }
        let mut challenges = [header::WWW_AUTHENTICATE, header::PROXY_AUTHENTICATE].iter();
        if challenges.any(|name| authenticates_connection(response.headers(), name)) {
            lease.make_private();
        }
        Ok(Sent {
            response,
            lease,
            info,
            reused,
        })
    }

    /// Leases a new connection, or one that another request of this client has opened meanwhile.
    async fn open_lease(
        &self,
        leases: &Arc<ClientLeases>,
        key: &PoolKey,
    ) -> Result<Lease, FailedAttempt> {
        let started = Instant::now();
        if !key.http2 || self.is_http1_only(&key.to, key.original_dst) {
            let connection = self.dialer.connect(key, leases.client).await?;
            return Ok(Lease::new(leases, key, connection));
        }
        // Single flight: one of several concurrent requests dials, and the others with its key get its connection or its error.
        let mut failures = leases.dialling.lock().await;
        if let Some(lease) = Lease::reuse_opened_since(leases, key, started) {
            return Ok(lease);
        }
        if let Some(cause) = failures.cause_for(key, started) {
            return Err(cause.clone());
        }
        let connection = if self.is_http1_only(&key.to, key.original_dst) {
            // Over HTTP/1.1 each request needs a connection of its own, so they dial concurrently.
            drop(failures);
            self.dialer.connect(key, leases.client).await?
        } else {
            let connected = self.dialer.connect(key, leases.client).await;
            failures.record(key, &connected);
            let connection = connected?;
            self.speaks_http2
                .insert((key.to.clone(), key.original_dst), connection.is_http2());
            connection
        };
        let key = PoolKey {
            http2: connection.is_http2(),
            ..key.clone()
        };
        Ok(Lease::new(leases, &key, connection))
    }

    /// Sends the request, and waits for its response until the limit has passed since `started`, or since the body last moved. An
    /// error comes with the request, if nothing of it was sent.
    async fn wait_response(
        &self,
        lease: &mut Lease,
        request: Request<RequestBody>,
        progress: &SendProgress,
        started: Instant,
        limit: Duration,
    ) -> Result<Response<Incoming>, (UpstreamError, Option<Box<Request<RequestBody>>>)> {
        let idle = self.config().idle_timeout;
        let may_be_silent = is_streaming(request.headers());
        let mut awaits_continue = request.body().awaits_continue();
        let continue_now = request.body().continue_handle();
        let sent = Instant::now();
        let mut response = pin!(lease.send(request));
        let (mut bytes_seen, mut last_progress) = (progress.bytes.load(Relaxed), started);
        let mut next_check = last_progress + idle.min(limit);
        loop {
            tokio::select! {
                response = &mut response => return response.map_err(|mut error| {
                    let unsent = error.take_message().map(Box::new);
                    (UpstreamError::from_exchange(error.error()), unsent)
                }),
                () = sleep_until(sent + CONTINUE_TIMEOUT), if awaits_continue => {
                    continue_now();
                    awaits_continue = false;
                    continue;
                }
                () = sleep_until(next_check) => {}
            }
            // While the body moves, the response is not due.
            let bytes = progress.bytes.load(Relaxed);
            next_check = last_progress + limit;
            if bytes != bytes_seen {
                (bytes_seen, last_progress) = (bytes, Instant::now());
                next_check = last_progress + idle.min(limit);
            } else if progress.awaits_client.load(Relaxed) && !may_be_silent {
                return Err((UpstreamError::RequestIdle(idle.min(limit)), None));
            } else if last_progress.elapsed() >= limit {
                return Err((UpstreamError::ResponseTimeout(limit), None));
            }
        }
    }

    /// Evicts expired idle connections periodically, by the current idle timeout. Runs once for each worker, on its thread.
    pub(crate) async fn run_idle_sweep(&self, idle_timeout: impl Fn() -> Duration) {
        let pool = POOL.with(Arc::clone);
        self.dialer.add_pool(&pool);
        loop {
            tokio::time::sleep(SWEEP_INTERVAL).await;
            pool.evict_expired(idle_timeout());
        }
    }

    /// Closes this worker's idle connections.
    pub(crate) fn close_idle() {
        POOL.with(|pool| pool.clear());
    }

    pub(crate) fn config(&self) -> &UpstreamConfig {
        self.dialer.config()
    }
}

/// Sets or removes `Expect: 100-continue`: it is sent while the client waits for the origin's 100 (Continue).
fn set_expectation(request: &mut Request<RequestBody>) {
    if !request.body().awaits_continue() {
        // A first attempt may have set the header, and met the expectation.
        request.headers_mut().remove(header::EXPECT);
        return;
    }
    let expectation = HeaderValue::from_static("100-continue");
    request.headers_mut().insert(header::EXPECT, expectation);
    let continue_now = request.body().continue_handle();
    hyper::ext::on_informational(request, move |interim| {
        if interim.status() == StatusCode::CONTINUE {
            continue_now();
        }
    });
}

thread_local! {
    static POOL: Arc<IdlePool> = Arc::default();
}

/// The maximum number of origins whose protocol and retry budget are remembered. A protocol takes some 60 bytes.
const MAX_REMEMBERED_ORIGINS: u64 = 16_384;
/// The timeout for an origin's 100 (Continue). Many origins don't send it, and many clients don't wait longer, either.
const CONTINUE_TIMEOUT: Duration = Duration::from_secs(1);
/// The time for which the protocol of an origin is remembered. It may change: a server may gain HTTP/2, and a load balancer may
/// have servers with and without it.
const PROTOCOL_LIFETIME: Duration = Duration::from_secs(600);
const SWEEP_INTERVAL: Duration = Duration::from_secs(5);
