//! Requests to origins: sends one that is [`Allowed`], and returns the head of its response.

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
mod request_body;
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

use crate::audit::BodyProgress;
use crate::authz::{AccessRules, Allowed, AllowedTunnel};
use crate::host::HostPort;
use crate::policy::destination::SharedRules;
use crate::request::id::Id;

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
use message_head::{RequestForm, authenticates_connection, framing_error, write_target};
pub use request_body::{RequestBody, RequestBodyError};
use retry::{RetryBudgets, RetryCopy};
use trust::{OriginTls, TrustError};

/// The client side of the proxy, shared by the workers; each worker has connections of its own.
#[derive(Debug)]
pub struct Upstream {
    dialer: Dialer,
    /// Whether an origin chose HTTP/2 when both protocols were offered. The address of a redirected connection is part of
    /// the key: the client chose it, and it may be another server's.
    speaks_http2: Cache<(HostPort, Option<IpAddr>), bool>,
    retries: RetryBudgets,
}

/// The head of a response, and the connection that it came through.
#[derive(Debug)]
pub struct Sent {
    pub(crate) response: Response<Incoming>,
    pub(crate) lease: Lease,
    pub(crate) about: Arc<ConnectionInfo>,
    pub(crate) reused: bool,
    pub(crate) retried: bool,
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
    /// `native` are the roots of this host, and `own_ca` the certificates of the proxy's own authority, which no origin may be
    /// certified by.
    ///
    /// # Errors
    ///
    /// [`TrustError`]: there is no trusted root, or a file of `--extra-ca` is unusable.
    pub fn new(
        config: UpstreamConfig,
        native: &CertificateResult,
        own_ca: &[CertificateDer<'_>],
    ) -> Result<Self, TrustError> {
        let tls = OriginTls::new(native, &config.extra_ca, own_ca)?;
        Ok(Self::with_dialer(Dialer::new(config, tls)))
    }

    /// Replaces the access lists by which destinations are admitted, for connections of clients that are open, too: connections to
    /// origins, which the old lists have admitted, take no further request. Returns the lists for the successor, which shares them.
    pub(crate) fn replace_rules(&self, rules: Option<Arc<AccessRules>>) -> SharedRules {
        let shared = &self.config().destinations.rules;
        shared.store(rules);
        self.dialer.renew_connections();
        shared.clone()
    }

    /// Whether the proxy itself listens there.
    pub(crate) fn is_own_listener(&self, addr: SocketAddr) -> bool {
        let destinations = &self.config().destinations;
        destinations.is_own_listener(addr.ip(), addr.port())
    }

    /// The client side after a reload. It shares the connection cap, and reuses no connection of this one.
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

    /// Registers the gauges of the connections to origins, which are shared by all values after reloads.
    pub(crate) fn register(&self, registry: &mut Registry) {
        self.dialer.register(registry);
    }

    /// Whether an origin is known to speak HTTP/1.1 only.
    pub(crate) fn is_http1_only(&self, origin: &HostPort, via: Option<IpAddr>) -> bool {
        self.speaks_http2.get(&(origin.clone(), via)) == Some(false)
    }

    /// The leases, none so far, of a client connection that is served on this thread.
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
    /// A request that the origin has not processed, or that may be repeated, is retried once, on a connection that is opened
    /// for it; see `RetryCopy::after`. Both attempts have the target that was checked, and together the time of one.
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
        if key.http2 && self.is_http1_only(&key.to, key.via) {
            key.http2 = false;
        }
        let started = Instant::now();
        let lease = match Lease::reuse(leases, &key) {
            Some(lease) => lease,
            // Boxed, as it is large and rare: each request would allocate the memory for a TLS handshake.
            None => Box::pin(self.open_lease(leases, &key)).await?,
        };
        let exchange = self.exchange(lease, &key, request, progress, started);
        let failed = match exchange.await {
            Ok(sent) => return Ok(sent),
            Err(failed) => failed,
        };
        match failed.retry {
            Some(retry) if self.retries.withdraw(&key.to) => {
                if matches!(
                    failed.cause.error,
                    UpstreamError::Unprocessed(h2::Reason::HTTP_1_1_REQUIRED)
                ) {
                    self.speaks_http2.insert((key.to.clone(), key.via), false);
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
        progress: &BodyProgress,
        started: Instant,
    ) -> Result<Sent, FailedAttempt> {
        let sent = async {
            let lease = self.open_lease(leases, key).await?;
            let exchange = self.exchange(lease, key, request, progress, started);
            exchange.await.map_err(|failed| failed.cause)
        };
        match sent.await {
            Ok(sent) => Ok(Sent {
                retried: true,
                ..sent
            }),
            Err(failed) => Err(FailedAttempt {
                retried: true,
                ..failed
            }),
        }
    }

    /// Sends a request on a leased connection; it waits for its response since `started`.
    async fn exchange(
        &self,
        mut lease: Lease,
        key: &PoolKey,
        mut request: Request<RequestBody>,
        progress: &BodyProgress,
        started: Instant,
    ) -> Result<Sent, FailedExchange> {
        let reused = lease.is_reused();
        let about = Arc::clone(lease.about());
        if request.body().awaits_continue() {
            let expectation = HeaderValue::from_static("100-continue");
            request.headers_mut().insert(header::EXPECT, expectation);
            let continue_now = request.body().continue_handle();
            hyper::ext::on_informational(&mut request, move |interim| {
                if interim.status() == StatusCode::CONTINUE {
                    continue_now();
                }
            });
        } else {
            // An attempt before may have met it.
            request.headers_mut().remove(header::EXPECT);
        }
        if authenticates_connection(request.headers(), &header::AUTHORIZATION) {
            lease.make_private();
        }
        let form = RequestForm {
            http2: lease.is_http2(),
            absolute: about.absolute_form,
        };
        write_target(&mut request, key, form);
        if let Some(proxy) = self.config().proxy.as_ref()
            && about.absolute_form
        {
            proxy.sign(request.headers_mut());
        }
        let copy = (reused || lease.is_http2()).then(|| RetryCopy::new(&request));
        let limit = self.config().response_timeouts.get(&key.to.host);
        let limit = limit.unwrap_or_else(|| self.config().response_timeout);
        let waited = self.wait_response(&mut lease, request, progress, started, limit);
        let response = match waited.await {
            Ok(response) => response,
            Err((error, unsent)) => {
                if matches!(error, UpstreamError::Unprocessed(_)) {
                    lease.retire();
                }
                // The origin closed the connection in the moment of its reuse, or may have done so. A copy begins a new
                // attempt, after which the request that was not sent could not read the body.
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
                    cause: error.at(about.addr),
                    retry,
                });
            }
        };
        if let Some(copy) = copy {
            copy.discard();
        }
        if let Some(error) = framing_error(response.headers()) {
            return Err(UpstreamError::BadResponse(error.to_owned())
                .at(about.addr)
                .into());
        }
        let mut challenges = [header::WWW_AUTHENTICATE, header::PROXY_AUTHENTICATE].iter();
        if challenges.any(|name| authenticates_connection(response.headers(), name)) {
            lease.make_private();
        }
        Ok(Sent {
            response,
            lease,
            about,
            reused,
            retried: false,
        })
    }

    /// Leases a new connection, or one that another request has opened meanwhile.
    async fn open_lease(
        &self,
        leases: &Arc<ClientLeases>,
        key: &PoolKey,
    ) -> Result<Lease, FailedAttempt> {
        let asked = Instant::now();
        if !key.http2 || self.is_http1_only(&key.to, key.via) {
            let connection = self.dialer.connect(key, leases.client).await?;
            return Ok(Lease::new(leases, key, connection));
        }
        // Single flight: of requests that come together one dials, and the others then have its connection or its error.
        // If it turns out that each needs a connection of its own, they dial at the same time.
        let mut last_failure = leases.dialling.lock().await;
        if let Some(lease) = Lease::reuse_opened_since(leases, key, asked) {
            return Ok(lease);
        }
        if let Some((_, failed)) = last_failure.as_ref().filter(|(at, _)| *at > asked) {
            return Err(failed.clone());
        }
        let connected = match self.is_http1_only(&key.to, key.via) {
            true => {
                drop(last_failure);
                self.dialer.connect(key, leases.client).await?
            }
            false => {
                let connected = self.dialer.connect(key, leases.client).await;
                *last_failure = connected
                    .as_ref()
                    .err()
                    .map(|failed| (Instant::now(), failed.clone()));
                let connection = connected?;
                self.speaks_http2
                    .insert((key.to.clone(), key.via), connection.is_http2());
                connection
            }
        };
        let key = PoolKey {
            http2: connected.is_http2(),
            ..key.clone()
        };
        Ok(Lease::new(leases, &key, connected))
    }

    /// Sends the request, and waits for its response until the limit has passed since `started`, or since the body last moved.
    async fn wait_response(
        &self,
        lease: &mut Lease,
        request: Request<RequestBody>,
        progress: &BodyProgress,
        started: Instant,
        limit: Duration,
    ) -> Result<Response<Incoming>, (UpstreamError, Option<Box<Request<RequestBody>>>)> {
        let idle = self.config().idle_timeout;
        let may_be_silent = is_streaming(request.headers());
        let mut awaits_continue = request.body().awaits_continue();
        let continue_now = request.body().continue_handle();
        let sent = Instant::now();
        let mut response = pin!(lease.send(request));
        let (mut before, mut since) = (progress.bytes.load(Relaxed), started);
        let mut next_check = since + idle.min(limit);
        loop {
            tokio::select! {
                response = &mut response => return response.map_err(|mut error| {
                    let unsent = error.take_message().map(Box::new);
                    (UpstreamError::exchange(error.error()), unsent)
                }),
                () = sleep_until(sent + CONTINUE_TIMEOUT), if awaits_continue => {
                    continue_now();
                    awaits_continue = false;
                    continue;
                }
                () = sleep_until(next_check) => {}
            }
            // While the body moves, the response is not due.
            let now = progress.bytes.load(Relaxed);
            next_check = since + limit;
            if now != before {
                (before, since) = (now, Instant::now());
                next_check = since + idle.min(limit);
            } else if progress.awaits_client.load(Relaxed) && !may_be_silent {
                return Err((UpstreamError::RequestIdle(idle.min(limit)), None));
            } else if since.elapsed() >= limit {
                return Err((UpstreamError::ResponseTimeout(limit), None));
            }
        }
    }

    /// Closes connections that were idle for the idle timeout that is in force, again and again. Runs once for each worker,
    /// on its thread.
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

    fn config(&self) -> &UpstreamConfig {
        self.dialer.config()
    }
}

thread_local! {
    static POOL: Arc<IdlePool> = Arc::default();
}

/// Origins with a remembered protocol, in some 60 bytes each.
const MAX_REMEMBERED_ORIGINS: u64 = 16_384;
/// How long an origin has for its 100 (Continue). Many don't send it, and many clients don't wait for longer, either.
const CONTINUE_TIMEOUT: Duration = Duration::from_secs(1);
/// How long the protocol of an origin is remembered: a server may gain HTTP/2, and a load balancer may have servers
/// with and without it.
const PROTOCOL_LIFETIME: Duration = Duration::from_secs(600);
const SWEEP_INTERVAL: Duration = Duration::from_secs(5);
