//! Towards origins: one request out, the head of its answer back.

mod client_leases;
mod connection;
mod connection_cap;
mod dialer;
mod error;
mod idle_pool;
mod resolver;
pub(crate) mod trust;
mod upstream_proxy;

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use arc_swap::ArcSwap;
use http::uri::{Authority, Parts, PathAndQuery, Scheme};
use http::{HeaderMap, HeaderValue, Request, Response, Uri, Version, header};
use hyper::body::{Body, Incoming};
use moka::sync::Cache;
use rustls::pki_types::CertificateDer;
use tokio::time::{Instant, sleep_until};

use crate::audit::Sending;
use crate::http::response_body::Outgoing;
use crate::policy::destination::Destinations;
use crate::http::hop_by_hop;
use crate::host::HostPort;
use crate::request::id::Id;

pub(crate) use connection::About;
pub(crate) use error::{Failed, Fault};
use resolver::Lookups;
pub(crate) use client_leases::{Lease, Own};
pub use upstream_proxy::{NotAParent, Parent};
use connection_cap::Places;
pub(crate) use idle_pool::Key;
use idle_pool::Pool;
pub use trust::TrustError;

/// How origins are reached.
#[derive(Debug)]
pub struct Settings {
    /// Authorities beside the host's own (`--extra-ca`).
    pub extra_ca: Vec<PathBuf>,
    /// A proxy to go through (`--upstream-proxy`).
    pub parent: Option<Parent>,
    /// Whether each connection begins with a PROXY header of version 2 that names the client.
    pub send_proxy: bool,
    /// For a TCP connection.
    pub connect_timeout: Duration,
    /// For a TLS handshake.
    pub handshake_timeout: Duration,
    /// From the end of the request to the head of the answer, or from its last octet that went.
    pub answer_timeout: Duration,
    /// How long a connection is kept that nobody uses, and a client waited for that sends nothing of its request.
    pub idle: Duration,
    /// How many connections there may be at a time, those that nobody uses among them.
    pub most: usize,
}

/// The way to all origins, shared by the workers; connections are of the worker that asks.
#[derive(Debug)]
pub struct Upstream {
    settings: Settings,
    tls: ArcSwap<trust::Tls>,
    destinations: Destinations,
    places: Places,
    lookups: Lookups,
    /// What origins answered when both were offered: whether they speak HTTP/2. An address that a client chose may
    /// be another server.
    speaks_http2: Cache<(HostPort, Option<IpAddr>), bool>,
}

/// The head of an answer, and what came with it.
#[derive(Debug)]
pub(crate) struct Sent {
    pub(crate) response: Response<Incoming>,
    pub(crate) lease: Lease,
    pub(crate) about: Arc<About>,
    pub(crate) reused: bool,
}

impl Upstream {
    /// `ours` are the certificates of our own authority.
    ///
    /// # Errors
    ///
    /// [`TrustError`]: nobody could be verified.
    pub fn new(
        settings: Settings,
        destinations: Destinations,
        ours: &[CertificateDer<'_>],
    ) -> Result<Self, TrustError> {
        Ok(Self {
            tls: ArcSwap::from_pointee(trust::Tls::new(&settings.extra_ca, ours)?),
            places: Places::new(settings.most),
            lookups: Lookups::default(),
            settings,
            destinations,
            speaks_http2: Cache::builder()
                .max_capacity(MOST_REMEMBERED)
                .time_to_live(REMEMBERED)
                .build(),
        })
    }

    /// Reads again whom origins may be certified by; [`Upstream::trust`] goes by it.
    ///
    /// # Errors
    ///
    /// As [`Upstream::new`].
    pub(crate) fn read_trust(&self, ours: &[CertificateDer<'_>]) -> Result<trust::Tls, TrustError> {
        trust::Tls::new(&self.settings.extra_ca, ours)
    }

    /// Verifies new connections by this. Those that are open stay.
    pub(crate) fn trust(&self, tls: trust::Tls) {
        self.tls.store(Arc::new(tls));
    }

    /// Whether an origin is known to speak HTTP/1.1 only.
    pub(crate) fn is_http1_only(&self, origin: &HostPort, via: Option<IpAddr>) -> bool {
        self.speaks_http2.get(&(origin.clone(), via)) == Some(false)
    }

    /// What a client connection that is served on this thread has of its own: nothing so far.
    pub(crate) fn own(id: Id, client: IpAddr) -> Arc<Own> {
        Arc::new(Own::of(id, client, POOL.with(Arc::clone)))
    }

    /// What a connection of this client to this place has to be.
    pub(crate) fn key(
        &self,
        to: HostPort,
        tls: bool,
        http2: bool,
        via: Option<IpAddr>,
        client: SocketAddr,
    ) -> Key {
        Key {
            to,
            tls,
            http2: http2 && tls,
            via,
            speaks_for: self.settings.send_proxy.then_some(client),
            private_to: None,
        }
    }

    /// Sends a request, whose URI has a path only, and waits for the head of the answer. `sent` counts
    /// what of its body has gone.
    pub(crate) async fn send(
        &self,
        own: &Arc<Own>,
        key: Key,
        mut request: Request<Outgoing>,
        sent: &Sending,
    ) -> Result<Sent, Failed> {
        loop {
            let (mut lease, reused) = self.lease(own, &key).await?;
            let about = Arc::clone(lease.about());
            if hop_by_hop::bind_connection(request.headers(), &header::AUTHORIZATION) {
                lease.make_private();
            }
            form(&mut request, &key, &lease);
            if let Some(parent) = self.settings.parent.as_ref()
                && about.absolute_form
            {
                parent.sign(request.headers_mut());
            }
            let again = if reused { repeated(&request) } else { None };
            match self.answer(&mut lease, request, sent).await {
                Ok(response) => {
                    if let Some(smell) = smell(response.headers()) {
                        return Err(Fault::BadAnswer(smell.to_owned()).with(about.addr));
                    }
                    let mut asks = [header::WWW_AUTHENTICATE, header::PROXY_AUTHENTICATE].iter();
                    if asks.any(|name| hop_by_hop::bind_connection(response.headers(), name)) {
                        lease.make_private();
                    }
                    return Ok(Sent {
                        response,
                        lease,
                        about,
                        reused,
                    });
                }
                // The origin closed it in the moment it was to be used again: nothing was sent, or nothing that
                // changes anything (RFC 9112, section 9.3.1).
                Err((fault, unsent)) => {
                    let unsent = unsent.filter(|_| reused).map(|unsent| *unsent);
                    let again = again.filter(|_| matches!(fault, Fault::Closed));
                    request = unsent.or(again).ok_or_else(|| fault.with(about.addr))?;
                }
            }
        }
    }

    /// A connection for one request, and whether it was there before.
    async fn lease(&self, own: &Arc<Own>, key: &Key) -> Result<(Lease, bool), Failed> {
        let asked = Instant::now();
        if let Some(lease) = Lease::again(own, key) {
            return Ok((lease, true));
        }
        if !key.http2 || self.is_http1_only(&key.to, key.via) {
            let connection = self.connect(key, own.client).await?;
            return Ok((Lease::first(own, key, connection), false));
        }
        // Of requests that come together one dials, and the others then have a connection or its fault. If it
        // turns out that each needs one of its own, they dial at the same time.
        let mut turn = own.dialling.lock().await;
        if let Some(lease) = Lease::again(own, key) {
            return Ok((lease, true));
        }
        if let Some((_, failed)) = turn.as_ref().filter(|(at, _)| *at > asked) {
            return Err(failed.clone());
        }
        let connected = match self.is_http1_only(&key.to, key.via) {
            true => {
                drop(turn);
                self.connect(key, own.client).await?
            }
            false => {
                let connected = self.connect(key, own.client).await;
                *turn = connected
                    .as_ref()
                    .err()
                    .map(|failed| (Instant::now(), failed.clone()));
                let connection = connected?;
                self.speaks_http2
                    .insert((key.to.clone(), key.via), connection.is_http2());
                connection
            }
        };
        Ok((Lease::first(own, key, connected), false))
    }

    async fn answer(
        &self,
        lease: &mut Lease,
        request: Request<Outgoing>,
        sent: &Sending,
    ) -> Result<Response<Incoming>, (Fault, Option<Box<Request<Outgoing>>>)> {
        let (idle, limit) = (self.settings.idle, self.settings.answer_timeout);
        let may_be_silent = hop_by_hop::is_long_lived(request.headers());
        let mut answer = pin!(lease.send(request));
        let (mut before, mut since) = (0, Instant::now());
        loop {
            let first = since + idle.min(limit);
            let look = if Instant::now() < first {
                first
            } else {
                since + limit
            };
            tokio::select! {
                answer = &mut answer => return answer.map_err(|mut error| {
                    let unsent = error.take_message().map(Box::new);
                    (of_http(error.error()), unsent)
                }),
                () = sleep_until(look) => {}
            }
            // As long as the body moves, the answer is not due.
            let now = sent.octets.load(Relaxed);
            if now != before {
                (before, since) = (now, Instant::now());
            } else if sent.awaits_client.load(Relaxed) && !may_be_silent {
                return Err((Fault::RequestIdle(idle.min(limit)), None));
            } else if since.elapsed() >= limit {
                return Err((Fault::AnswerTimeout(limit), None));
            }
        }
    }

    /// Closes, again and again, what has not been used for a while. For each worker, on its thread.
    pub(crate) async fn sweep(&self) {
        let pool = POOL.with(Arc::clone);
        self.places.add(&pool);
        loop {
            tokio::time::sleep(SWEEP).await;
            pool.forget_unused(self.settings.idle);
        }
    }

    /// Closes this worker's idle connections.
    pub(crate) fn close_idle() {
        POOL.with(|pool| pool.clear());
    }
}

/// The same request once more, if it does not matter how often it is made.
fn repeated(request: &Request<Outgoing>) -> Option<Request<Outgoing>> {
    let body = request.body().repeated()?;
    request.method().is_safe().then(|| {
        let mut again = Request::new(body);
        *again.method_mut() = request.method().clone();
        *again.uri_mut() = request.uri().clone();
        *again.version_mut() = request.version();
        *again.headers_mut() = request.headers().clone();
        again
    })
}

/// Writes the request's target in the form that the connection wants it: HTTP/1.1 has the path alone and a
/// Host header, HTTP/2 has all of it in the URI.
fn form(request: &mut Request<Outgoing>, key: &Key, lease: &Lease) {
    let path = request.uri().path_and_query().cloned();
    let authority = authority(key);
    let whole = lease.is_http2() || lease.about().absolute_form;
    let mut parts = Parts::default();
    if whole {
        parts.scheme = Some(if key.tls { Scheme::HTTPS } else { Scheme::HTTP });
        parts.authority = Authority::try_from(authority.as_str()).ok();
    }
    parts.path_and_query = path.or_else(|| Some(PathAndQuery::from_static("/")));
    // These parts go together in both forms.
    if let Ok(uri) = Uri::from_parts(parts) {
        *request.uri_mut() = uri;
    }
    if lease.is_http2() {
        *request.version_mut() = Version::HTTP_2;
        request.headers_mut().remove(header::HOST);
        // Of a first attempt, by HTTP/1.1.
        request.headers_mut().remove(header::TRANSFER_ENCODING);
    } else {
        *request.version_mut() = Version::HTTP_11;
        hop_by_hop::join_cookies(request.headers_mut());
        // A host's spelling has no octet that a header could not have.
        if let Ok(host) = HeaderValue::try_from(authority) {
            request.headers_mut().insert(header::HOST, host);
        }
        // hyper would take a GET without a length for one without a body.
        let is_unsized = request.body().size_hint().exact().is_none();
        if is_unsized && !request.headers().contains_key(header::CONTENT_LENGTH) {
            let chunked = HeaderValue::from_static("chunked");
            let headers = request.headers_mut();
            headers.insert(header::TRANSFER_ENCODING, chunked);
        }
    }
}

/// Host and port, the latter where the scheme does not imply it.
fn authority(key: &Key) -> String {
    let mut text = key.to.to_string();
    let implied = if key.tls { ":443" } else { ":80" };
    if text.ends_with(implied) {
        text.truncate(text.len() - implied.len());
    }
    text
}

/// What makes the end of an answer's body a matter of opinion (RFC 9112, section 6.3). hyper reads such an answer
/// by its Transfer-Encoding, and would pass the other length on.
fn smell(headers: &HeaderMap) -> Option<&'static str> {
    let mut codings = headers.get_all(header::TRANSFER_ENCODING).iter();
    match (codings.next(), codings.next()) {
        (None, _) => None,
        (Some(_), _) if headers.contains_key(header::CONTENT_LENGTH) => {
            Some("an answer with Transfer-Encoding and Content-Length")
        }
        (Some(one), None) if one.as_bytes().eq_ignore_ascii_case(b"chunked") => None,
        _ => Some("an answer with a Transfer-Encoding other than chunked"),
    }
}

fn of_http(error: &hyper::Error) -> Fault {
    if error.is_user() {
        return Fault::RequestCut;
    }
    if error.is_parse() {
        return Fault::BadAnswer(error.to_string());
    }
    Fault::Closed
}

thread_local! {
    static POOL: Arc<Pool> = Arc::default();
}

/// Of 60 octets or so.
const MOST_REMEMBERED: u64 = 16_384;
/// Servers learn HTTP/2, and a load balancer may have more than one sort of them.
const REMEMBERED: Duration = Duration::from_secs(600);
const SWEEP: Duration = Duration::from_secs(5);
