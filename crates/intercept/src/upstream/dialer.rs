//! Dials origins: resolves, admits the address, connects, announces the client, and encrypts.

use std::future::poll_fn;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use std::time::Duration;

use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use moka::future::Cache;
use peername_proto::{Transport, V2Writer, kind};
use prometheus_client::registry::Registry;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;

use super::config::UpstreamConfig;
use super::connection::{
    Connection, ConnectionInfo, OpenTunnel, Sender, StreamLimit, TlsConnection,
};
use super::connection_cap::{ConnectionCap, PoolCollector};
use super::connection_permit::ConnectionPermit;
use super::error::{FailedAttempt, UpstreamError};
use super::happy_eyeballs;
use super::idle_pool::{IdlePool, PoolKey};
use super::resolver::Resolver;
use super::trust::OriginTls;
use super::trust::tls_diagnosis::{self, Incompatibility};
use super::upstream_proxy::UpstreamProxy;
use crate::audit::tls_version;
use crate::authz::{Allowed, AllowedTunnel};
use crate::host::{HostPort, LOOPBACK};
use crate::policy::destination::Requested;
use crate::stream::corked::CorkedStream;
use crate::stream::origin_socket::{OriginSocket, UnnotifiedEnd};

/// Makes new connections to origins, under the connection cap.
#[derive(Debug)]
pub(super) struct Dialer {
    config: UpstreamConfig,
    tls: OriginTls,
    /// Connections of another one are not reused.
    generation: AtomicU64,
    /// The last number given, of this value or of those after reloads.
    generations: Arc<AtomicU64>,
    cap: Arc<ConnectionCap>,
    resolver: Arc<Resolver>,
    /// Why handshakes with an origin failed recently, by the origin and the address that a redirected client has chosen for it.
    diagnoses: Cache<(HostPort, Option<IpAddr>), Diagnosis>,
}

impl Dialer {
    pub(super) fn new(config: UpstreamConfig, tls: OriginTls) -> Self {
        Self {
            tls,
            cap: Arc::new(ConnectionCap::new(config.max_connections)),
            resolver: Arc::default(),
            generation: AtomicU64::new(0),
            generations: Arc::default(),
            config,
            diagnoses: diagnoses(),
        }
    }

    /// The dialer after a reload: the cap and the limits of lookups are shared.
    pub(super) fn successor(&self, config: UpstreamConfig, tls: OriginTls) -> Self {
        Self {
            tls,
            cap: Arc::clone(&self.cap),
            resolver: Arc::clone(&self.resolver),
            generation: AtomicU64::new(self.next_generation()),
            generations: Arc::clone(&self.generations),
            config,
            diagnoses: diagnoses(),
        }
    }

    /// The pool key of a connection for this request.
    pub(super) fn request_key(&self, request: &Allowed) -> PoolKey {
        let target = request.target();
        PoolKey {
            generation: self.generation.load(Acquire),
            to: target.to.clone(),
            tls: target.tls,
            http2: request.allows_http2() && target.tls,
            via: target.via,
            announced_client: self.config.send_proxy.then_some(request.client()),
            private_to: None,
        }
    }

    /// The key of a connection for this tunnel, which is in no pool.
    fn tunnel_key(&self, tunnel: &AllowedTunnel) -> PoolKey {
        PoolKey {
            generation: self.generation.load(Acquire),
            to: tunnel.target().to.clone(),
            tls: true,
            http2: false,
            via: None,
            announced_client: self.config.send_proxy.then_some(tunnel.client()),
            private_to: None,
        }
    }

    pub(super) fn config(&self) -> &UpstreamConfig {
        &self.config
    }

    /// Registers the gauges of the connections.
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register_collector(Box::new(PoolCollector(Arc::clone(&self.cap))));
    }

    /// Reuses no connection that exists: idle ones are closed, and those in use are not taken again.
    pub(super) fn renew_connections(&self) {
        // After the new lists, by which what it opens is admitted.
        self.generation.store(self.next_generation(), Release);
        self.cap.close_idle();
    }

    /// A new number.
    fn next_generation(&self) -> u64 {
        1 + self.generations.fetch_add(1, Relaxed)
    }

    /// Adds a pool: its idle connections may be evicted for new ones.
    pub(super) fn add_pool(&self, pool: &Arc<IdlePool>) {
        self.cap.add_pool(pool);
    }

    /// Makes a connection that is ready for a request.
    ///
    /// # Errors
    ///
    /// The connection cap is reached; the origin can't be resolved, reached or verified, or is not an allowed destination.
    pub(super) async fn connect(
        &self,
        key: &PoolKey,
        client: IpAddr,
    ) -> Result<Connection, FailedAttempt> {
        let permit = self.cap.acquire()?;
        let (socket, addr) = self.connect_socket(key, client, key.tls).await?;
        match self.handshake(key, socket, addr, permit).await {
            Ok(connection) => Ok(connection),
            Err(UpstreamError::Handshake(why)) => {
                Err(self.diagnose(key, client, why).await.at(addr))
            }
            Err(error) => Err(error.at(addr)),
        }
    }

    /// The cause of a failed handshake, found by a second connection to the origin; `why` where it is not found.
    async fn diagnose(&self, key: &PoolKey, client: IpAddr, why: String) -> UpstreamError {
        let diagnose = self.diagnose_afresh(key, client);
        // An origin that could not be asked is asked the next time.
        let found = self
            .diagnoses
            .optionally_get_with((key.to.clone(), key.via), diagnose)
            .await;
        match found {
            Some(Diagnosis(Some(cause))) => UpstreamError::Incompatible(cause),
            Some(Diagnosis(None)) | None => UpstreamError::Handshake(why),
        }
    }

    /// `None` if the origin can't be asked now.
    async fn diagnose_afresh(&self, key: &PoolKey, client: IpAddr) -> Option<Diagnosis> {
        let _permit = self.cap.acquire().ok()?;
        let connected = self.connect_socket(key, client, key.tls).await;
        let (mut socket, addr) = connected.ok()?;
        if let Some(client) = key.announced_client {
            let announced = send_proxy_header(&mut socket, client, addr, key).await;
            announced.ok()?;
        }
        let name = key.to.host.to_server_name();
        Some(Diagnosis(tls_diagnosis::diagnose(socket, &name).await))
    }

    /// Connects a socket to the origin, or to the upstream proxy and through it. `is_verified`: whether the origin's certificate
    /// will be verified before it gets anything.
    async fn connect_socket(
        &self,
        key: &PoolKey,
        client: IpAddr,
        is_verified: bool,
    ) -> Result<(TcpStream, SocketAddr), FailedAttempt> {
        let requested = Requested {
            to: &key.to,
            is_verified,
            is_resolved: key.via.is_none(),
        };
        let Some(proxy) = &self.config.proxy else {
            return self.connect_to_origin(requested, key.via, client).await;
        };
        self.admit_unresolved(requested)?;
        let (socket, addr) = self.connect_to_proxy(proxy, client).await?;
        if !key.tls {
            return Ok((socket, addr));
        }
        let tunnel = proxy.open_tunnel(socket, &key.to).await;
        tunnel
            .map(|socket| (socket, addr))
            .map_err(|error| error.at(addr))
    }

    async fn handshake(
        &self,
        key: &PoolKey,
        mut socket: TcpStream,
        addr: SocketAddr,
        permit: ConnectionPermit,
    ) -> Result<Connection, UpstreamError> {
        if let Some(client) = key.announced_client {
            send_proxy_header(&mut socket, client, addr, key).await?;
        }
        let absolute_form = !key.tls && self.config.proxy.is_some();
        let about = |tls| {
            Arc::new(ConnectionInfo {
                addr,
                tls,
                opened: Instant::now(),
                absolute_form,
                lacks_close_notify: Arc::default(),
                _permit: permit,
            })
        };
        let socket = OriginSocket::new(socket);
        if !key.tls {
            return http1_handshake(socket, about(None)).await;
        }
        let (config, limit) = (self.tls_config(key), self.config.handshake_timeout);
        let name = key.to.host.to_server_name();
        let connector = TlsConnector::from(config);
        let connecting = connector
            .connect(name, CorkedStream::new(socket))
            .into_fallible();
        let stream = match timeout(limit, connecting).await {
            Ok(Ok(mut stream)) => {
                // The last flight goes with the request, for which the origin waits.
                stream.get_mut().0.handshake_done(false);
                stream
            }
            Ok(Err((error, socket))) => {
                socket.handshake_failed().await;
                return Err(UpstreamError::from_tls(&error));
            }
            Err(_) => return Err(UpstreamError::HandshakeTimeout(limit)),
        };
        let (_, session) = stream.get_ref();
        let version = session.protocol_version().map(tls_version);
        match session.alpn_protocol() {
            Some(b"h2") => http2_handshake(stream, about(version)).await,
            _ => {
                let about = about(version);
                let stream = UnnotifiedEnd::new(stream, Arc::clone(&about.lacks_close_notify));
                http1_handshake(stream, about).await
            }
        }
    }

    /// See [`Upstream::open_tunnel`](super::Upstream::open_tunnel).
    pub(super) async fn open_tunnel(
        &self,
        tunnel: &AllowedTunnel,
    ) -> Result<OpenTunnel, FailedAttempt> {
        let permit = self.cap.acquire()?;
        let key = self.tunnel_key(tunnel);
        // The client itself verifies the origin's certificate, if there is one.
        let connecting = self.connect_socket(&key, tunnel.client().ip(), false);
        let (mut socket, addr) = connecting.await?;
        if let Some(client) = key.announced_client {
            let announced = send_proxy_header(&mut socket, client, addr, &key).await;
            announced.map_err(|error| error.at(addr))?;
        }
        let about = Arc::new(ConnectionInfo {
            addr,
            tls: None,
            opened: Instant::now(),
            absolute_form: false,
            lacks_close_notify: Arc::default(),
            _permit: permit,
        });
        Ok(OpenTunnel { socket, about })
    }

    fn tls_config(&self, key: &PoolKey) -> Arc<rustls::ClientConfig> {
        let tls = &self.tls;
        Arc::clone(if key.http2 { &tls.http2 } else { &tls.http1 })
    }

    async fn connect_to_origin(
        &self,
        requested: Requested<'_>,
        via: Option<IpAddr>,
        client: IpAddr,
    ) -> Result<(TcpStream, SocketAddr), FailedAttempt> {
        let (to, limit) = (requested.to, self.config.connect_timeout);
        let destinations = &self.config.destinations;
        let found = match via.or_else(|| to.host.as_ip()) {
            // Programs in a jail resolve `localhost` by themselves, and would try its other address if this one refused.
            Some(ip) if destinations.may_try_both_loopbacks(to, ip) => with_other_loopback(ip),
            Some(ip) => vec![ip],
            None => self.resolver.resolve(&to.host, client, limit).await?,
        };
        let mut refused = None;
        let mut admitted = Vec::new();
        for ip in found {
            let addr = SocketAddr::new(ip, to.port);
            match destinations.admit(addr, requested) {
                Ok(()) => admitted.push(addr),
                Err(why) => refused = refused.or(Some(UpstreamError::Destination(addr, why))),
            }
        }
        match (admitted.as_slice(), refused) {
            ([], Some(refused)) => Err(refused.into()),
            (admitted, _) => Ok(happy_eyeballs::connect(admitted, limit).await?),
        }
    }

    /// Connects to the upstream proxy, to which no destination rule applies: the operator named it.
    async fn connect_to_proxy(
        &self,
        proxy: &UpstreamProxy,
        client: IpAddr,
    ) -> Result<(TcpStream, SocketAddr), FailedAttempt> {
        let (at, limit) = (proxy.at(), self.config.connect_timeout);
        let found = match at.host.as_ip() {
            Some(ip) => vec![ip],
            None => {
                let found = self.resolver.resolve(&at.host, client, limit).await;
                found.map_err(|error| error.in_proxy())?
            }
        };
        let all: Vec<_> = found
            .into_iter()
            .map(|ip| SocketAddr::new(ip, at.port))
            .collect();
        happy_eyeballs::connect(&all, limit)
            .await
            .map_err(|error| FailedAttempt {
                error: error.in_proxy(),
                ..error.into()
            })
    }

    /// Admits an address as destination. Names pass: the upstream proxy resolves them.
    fn admit_unresolved(&self, requested: Requested<'_>) -> Result<(), UpstreamError> {
        let Some(ip) = requested.to.host.as_ip() else {
            return Ok(());
        };
        let addr = SocketAddr::new(ip, requested.to.port);
        let admitted = self.config.destinations.admit(addr, requested);
        admitted.map_err(|why| UpstreamError::Destination(addr, why))
    }
}

/// This address of `localhost`, and then the other one.
fn with_other_loopback(ip: IpAddr) -> Vec<IpAddr> {
    let others = LOOPBACK.into_iter().filter(|other| *other != ip);
    std::iter::once(ip).chain(others).collect()
}

/// Sends a PROXY header of version 2 (PROXY protocol, section 2.2) with the requested host as authority TLV.
async fn send_proxy_header(
    socket: &mut TcpStream,
    client: SocketAddr,
    to: SocketAddr,
    key: &PoolKey,
) -> Result<(), UpstreamError> {
    let mut header = Vec::new();
    let host = key.to.host.to_string();
    let written = V2Writer::proxy(&mut header, Transport::Stream, client, to)
        .tlv(kind::AUTHORITY, host.as_bytes())
        .finish();
    written.map_err(|error| UpstreamError::Handshake(error.to_string()))?;
    let sent = socket.write_all(&header).await;
    sent.map_err(|error| UpstreamError::connect(to, &error))
}

async fn http1_handshake<T>(io: T, about: Arc<ConnectionInfo>) -> Result<Connection, UpstreamError>
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let handshake = http1::Builder::new()
        .max_header_size(MAX_RESPONSE_HEAD)
        .max_headers(MAX_RESPONSE_HEADERS)
        .preserve_header_case(true)
        .handshake(TokioIo::new(io))
        .await;
    let (sender, driver) =
        handshake.map_err(|error| UpstreamError::BadResponse(error.to_string()))?;
    // The driver's errors reach the request that waits for a response. An async block would hold the driver twice: before
    // it is awaited, and while it is.
    let counted = Arc::clone(&about);
    let mut driver = driver.with_upgrades();
    tokio::spawn(poll_fn(move |cx| {
        let _counted = &counted;
        Pin::new(&mut driver).poll(cx).map(drop)
    }));
    Ok(Connection {
        sender: Sender::Http1(sender),
        about,
    })
}

async fn http2_handshake(
    io: TlsConnection,
    about: Arc<ConnectionInfo>,
) -> Result<Connection, UpstreamError> {
    let handshake = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_INTERVAL)
        .max_header_list_size(MAX_RESPONSE_HEAD as u32)
        .handshake(TokioIo::new(io))
        .await;
    let (sender, driver) =
        handshake.map_err(|error| UpstreamError::BadResponse(error.to_string()))?;
    Ok(Connection {
        sender: Sender::Http2(sender, StreamLimit::spawn(driver, Arc::clone(&about))),
        about,
    })
}

/// The cause of an origin's failed handshakes; `None` where it is another than those that are known.
#[derive(Clone, Debug)]
struct Diagnosis(Option<Incompatibility>);

fn diagnoses() -> Cache<(HostPort, Option<IpAddr>), Diagnosis> {
    Cache::builder()
        .max_capacity(MAX_DIAGNOSES)
        .time_to_live(DIAGNOSIS_LIFETIME)
        .build()
}

/// Bytes of a response's head.
const MAX_RESPONSE_HEAD: usize = 128 * 1024;
/// Header lines of a response: more than hyper's 100, for cookies and policies of large sites. hyper initializes 64 bytes for
/// each of them with each response.
const MAX_RESPONSE_HEADERS: usize = 250;
/// Finds out that a shared connection is dead before many requests have waited for it.
const PING_INTERVAL: Duration = Duration::from_secs(20);
/// Origins whose diagnosis is remembered, and for how long: a client that tries again and again causes one in this time.
const MAX_DIAGNOSES: u64 = 1024;
const DIAGNOSIS_LIFETIME: Duration = Duration::from_secs(60);
