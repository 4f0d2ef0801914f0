//! Dials origins: resolves, admits the address, connects, announces the client, and encrypts.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Release},
};
use std::time::Duration;

use moka::future::Cache;
use peername_proto::{Transport, V2Writer, kind};
use prometheus_client::registry::Registry;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::config::UpstreamConfig;
use super::connection::origin_socket::{CloseNotifyOptional, OriginSocket};
use super::connection::{Connection, ConnectionInfo, OpenTunnel, TlsConnection};
use super::connection_cap::{ConnectionCap, PoolCollector};
use super::connection_permit::ConnectionPermit;
use super::error::{FailedAttempt, UpstreamError};
use super::happy_eyeballs;
use super::idle_pool::{IdlePool, PoolKey};
use super::resolver::Resolver;
use super::trust::OriginTls;
use super::trust::tls_diagnosis::{self, Incompatibility};
use super::upstream_proxy::UpstreamProxy;
use crate::audit::{UpstreamFields, tls_version};
use crate::authz::{Allowed, AllowedTunnel};
use crate::host::{HostPort, LOCALHOST};
use crate::policy::destination::Requested;
use crate::request::target::RequestTarget;
use crate::stream::corked::CorkedStream;

/// Opens connections to origins, under the connection cap.
#[derive(Debug)]
pub(super) struct Dialer {
    config: UpstreamConfig,
    tls: OriginTls,
    /// The number of this dialer. The connections of another one are not reused: its configuration differs.
    number: u64,
    /// The current generation of connections; those of another one are not reused. A dialer shares it with its successors, as it
    /// shares the access lists: clients that are connected keep their dialer, however many reloads follow.
    generation: Arc<AtomicU64>,
    cap: Arc<ConnectionCap>,
    resolver: Arc<Resolver>,
    /// Recent diagnoses by origin, and by the address that a redirected client has chosen for it.
    diagnoses: DiagnosisCache,
}

impl Dialer {
    pub(super) fn new(config: UpstreamConfig, tls: OriginTls) -> Self {
        Self {
            tls,
            cap: Arc::new(ConnectionCap::new(config.max_connections)),
            resolver: Arc::default(),
            number: 0,
            generation: Arc::default(),
            config,
            diagnoses: diagnosis_cache(),
        }
    }

    /// The dialer after a reload, which shares the generation, the cap and the limits of lookups.
    pub(super) fn successor(&self, config: UpstreamConfig, tls: OriginTls) -> Self {
        Self {
            tls,
            cap: Arc::clone(&self.cap),
            resolver: Arc::clone(&self.resolver),
            number: self.begin_generation(),
            generation: Arc::clone(&self.generation),
            config,
            diagnoses: diagnosis_cache(),
        }
    }

    /// The pool key of a connection for this request.
    pub(super) fn request_key(&self, request: &Allowed) -> PoolKey {
        let target = request.target();
        PoolKey {
            tls: target.is_tls,
            http2: request.allows_http2() && target.is_tls,
            original_dst: target.original_dst,
            is_port_named: request.is_port_named(),
            ..self.tunnel_key(target, request.client())
        }
    }

    /// The key of a connection for a tunnel to this target. Tunnels are never in a pool.
    ///
    /// It lacks `original_dst`, which the client chose: this proxy sees no certificate in a tunnel that would prove that the
    /// address is the named host's. So the name is resolved.
    fn tunnel_key(&self, target: &RequestTarget, client: SocketAddr) -> PoolKey {
        let proxy = self.config.proxy.as_ref();
        PoolKey {
            dialer: self.number,
            generation: self.generation.load(Acquire),
            to: target.to.clone(),
            tls: true,
            http2: false,
            original_dst: None,
            is_port_named: false,
            announced_client: self.config.send_proxy.then_some(client),
            via: proxy.map(|_| Arc::clone(&target.via)).unwrap_or_default(),
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

    /// Closes idle connections, and keeps those in use from being reused, by any dialer.
    pub(super) fn renew_connections(&self) {
        self.begin_generation();
        self.cap.close_idle();
    }

    /// Begins a generation, and returns its number, which no other one has.
    fn begin_generation(&self) -> u64 {
        // Releases the store of the new access lists: they admit each connection of the new generation.
        1 + self.generation.fetch_add(1, Release)
    }

    /// Adds a pool whose idle connections may be evicted for new ones.
    pub(super) fn add_pool(&self, pool: &Arc<IdlePool>) {
        self.cap.add_pool(pool);
    }

    /// Opens a connection that is ready for a request.
    pub(super) async fn connect(
        &self,
        key: &PoolKey,
        client: IpAddr,
    ) -> Result<Connection, FailedAttempt> {
        let permit = self.cap.acquire(client)?;
        let (socket, addr) = self.connect_socket(key, client, key.tls).await?;
        match self.handshake(key, socket, addr, permit).await {
            Ok(connection) => Ok(connection),
            Err(UpstreamError::Handshake(why)) => {
                Err(self.diagnose(key, client, why).await.at(addr))
            }
            Err(error) => Err(error.at(addr)),
        }
    }

    /// Finds the cause of a failed handshake by a second connection to the origin. If the cause is not found, the error has
    /// `why`, the text of the failed handshake.
    async fn diagnose(&self, key: &PoolKey, client: IpAddr, why: String) -> UpstreamError {
        let origin = (key.to.clone(), key.original_dst);
        // `None` is not cached: an origin that can't be diagnosed now is diagnosed the next time.
        let diagnosis = self
            .diagnoses
            .optionally_get_with(origin, self.run_diagnosis(key, client))
            .await;
        match diagnosis {
            Some(Some(cause)) => UpstreamError::Incompatible(cause),
            Some(None) | None => UpstreamError::Handshake(why),
        }
    }

    /// Diagnoses an origin; `None` if it can't be reached now.
    async fn run_diagnosis(
        &self,
        key: &PoolKey,
        client: IpAddr,
    ) -> Option<Option<Incompatibility>> {
        let _permit = self.cap.acquire(client).ok()?;
        let (mut socket, addr) = self.connect_socket(key, client, key.tls).await.ok()?;
        announce_client(&mut socket, addr, key).await.ok()?;
        let name = key.to.host.to_server_name();
        Some(tls_diagnosis::diagnose(socket, &name).await)
    }

    /// Connects a socket to the origin, or through the upstream proxy. `is_verified` tells whether the origin's certificate is
    /// verified before anything is sent.
    async fn connect_socket(
        &self,
        key: &PoolKey,
        client: IpAddr,
        is_verified: bool,
    ) -> Result<(TcpStream, SocketAddr), FailedAttempt> {
        let requested = Requested {
            to: &key.to,
            is_verified,
            is_resolved: key.original_dst.is_none(),
            is_port_named: key.is_port_named,
        };
        let Some(proxy) = &self.config.proxy else {
            return self.connect_to_origin(requested, key, client).await;
        };
        self.admit_address(requested)?;
        let (socket, addr) = self.connect_to_proxy(proxy, client).await?;
        if !key.tls {
            return Ok((socket, addr));
        }
        match proxy.open_tunnel(socket, &key.to, &key.via).await {
            Ok(socket) => Ok((socket, addr)),
            Err(error) => Err(error.at(addr)),
        }
    }

    async fn handshake(
        &self,
        key: &PoolKey,
        mut socket: TcpStream,
        addr: SocketAddr,
        permit: Arc<ConnectionPermit>,
    ) -> Result<Connection, UpstreamError> {
        announce_client(&mut socket, addr, key).await?;
        let socket = OriginSocket::new(socket, Arc::clone(&permit));
        if !key.tls {
            let absolute_form = self.config.proxy.is_some();
            let fields = UpstreamFields { addr, tls: None };
            let info = ConnectionInfo::new(fields, absolute_form, permit);
            return Connection::handshake_http1(socket, info).await;
        }
        let stream = self.tls_handshake(key, socket).await?;
        let (_, session) = stream.get_ref();
        let tls = session.protocol_version().map(tls_version);
        let info = ConnectionInfo::new(UpstreamFields { addr, tls }, false, permit);
        match session.alpn_protocol() {
            Some(b"h2") => Connection::handshake_http2(stream, info).await,
            _ => {
                let stream = CloseNotifyOptional::new(stream, Arc::clone(&info.lacks_close_notify));
                Connection::handshake_http1(stream, info).await
            }
        }
    }

    async fn tls_handshake(
        &self,
        key: &PoolKey,
        socket: OriginSocket,
    ) -> Result<TlsConnection, UpstreamError> {
        let limit = self.config.handshake_timeout;
        let config = if key.http2 {
            &self.tls.http2
        } else {
            &self.tls.http1
        };
        let connecting = TlsConnector::from(Arc::clone(config))
            .connect(key.to.host.to_server_name(), CorkedStream::new(socket))
            .into_fallible();
        match timeout(limit, connecting).await {
            Ok(Ok(mut stream)) => {
                // Not flushed: the last flight is sent with the request, for which the origin waits.
                stream.get_mut().0.handshake_done(false);
                Ok(stream)
            }
            Ok(Err((error, socket))) => {
                socket.handshake_failed().await;
                Err(UpstreamError::from_tls(&error))
            }
            Err(_) => Err(UpstreamError::HandshakeTimeout(limit)),
        }
    }

    /// See [`Upstream::open_tunnel`](super::Upstream::open_tunnel).
    pub(super) async fn open_tunnel(
        &self,
        tunnel: &AllowedTunnel,
    ) -> Result<OpenTunnel, FailedAttempt> {
        let client = tunnel.client().ip();
        let permit = self.cap.acquire(client)?;
        let key = self.tunnel_key(tunnel.target(), tunnel.client());
        // In a tunnel the client verifies the origin's certificate, if there is one.
        let (mut socket, addr) = self.connect_socket(&key, client, false).await?;
        announce_client(&mut socket, addr, &key)
            .await
            .map_err(|error| error.at(addr))?;
        let info = ConnectionInfo::new(UpstreamFields { addr, tls: None }, false, permit);
        Ok(OpenTunnel { socket, info })
    }

    async fn connect_to_origin(
        &self,
        requested: Requested<'_>,
        key: &PoolKey,
        client: IpAddr,
    ) -> Result<(TcpStream, SocketAddr), FailedAttempt> {
        let (to, limit) = (requested.to, self.config.connect_timeout);
        let destinations = &self.config.destinations;
        let ips = match key.original_dst.or_else(|| to.host.as_ip()) {
            // A program in a jail resolves `localhost` itself, and expects that the other address is tried if this one refuses.
            Some(ip) if destinations.may_try_both_loopbacks(to, ip) => with_other_loopback(ip),
            Some(ip) => vec![ip],
            None => self.resolver.resolve(&to.host, client, limit).await?,
        };
        let mut refused = None;
        let mut admitted = Vec::new();
        for ip in ips {
            let addr = SocketAddr::new(ip, to.port);
            match destinations.admit(addr, requested) {
                Ok(()) => admitted.push(addr),
                Err(why) => refused = refused.or(Some(UpstreamError::Destination(addr, why))),
            }
        }
        match (admitted.as_slice(), refused) {
            ([], Some(refused)) => Err(refused.into()),
            (admitted, _) => Ok(self.connect_to_any(admitted, client).await?),
        }
    }

    /// Connects to the upstream proxy. No destination policy applies to it, because the operator has named it.
    async fn connect_to_proxy(
        &self,
        proxy: &UpstreamProxy,
        client: IpAddr,
    ) -> Result<(TcpStream, SocketAddr), FailedAttempt> {
        let (to, limit) = (proxy.host_port(), self.config.connect_timeout);
        let ips = match to.host.as_ip() {
            Some(ip) => vec![ip],
            None => self
                .resolver
                .resolve(&to.host, client, limit)
                .await
                .map_err(|error| error.in_proxy())?,
        };
        let addrs = ips.into_iter().map(|ip| SocketAddr::new(ip, to.port));
        let addrs: Vec<_> = addrs.collect();
        self.connect_to_any(&addrs, client).await.map_err(|error| {
            let FailedAttempt { error, tried } = error.into();
            FailedAttempt {
                error: error.in_proxy(),
                tried,
            }
        })
    }

    async fn connect_to_any(
        &self,
        addrs: &[SocketAddr],
        client: IpAddr,
    ) -> Result<(TcpStream, SocketAddr), UpstreamError> {
        happy_eyeballs::connect(addrs, self.config.connect_timeout, || {
            self.cap.acquire_spare(client)
        })
        .await
    }

    /// Decides on a destination that is an address. The upstream proxy resolves names, so these are not decided on.
    pub(super) fn admit_address(&self, requested: Requested<'_>) -> Result<(), UpstreamError> {
        let Some(ip) = requested.to.host.as_ip() else {
            return Ok(());
        };
        let addr = SocketAddr::new(ip, requested.to.port);
        self.config
            .destinations
            .admit(addr, requested)
            .map_err(|why| UpstreamError::Destination(addr, why))
    }
}

/// The loopback addresses, this one first.
fn with_other_loopback(ip: IpAddr) -> Vec<IpAddr> {
    let others = LOCALHOST.into_iter().filter(|other| *other != ip);
    std::iter::once(ip).chain(others).collect()
}

/// Announces the client, if the key has one to announce: sends a PROXY header of version 2 (PROXY protocol, section 2.2), with the
/// requested host as its authority TLV.
async fn announce_client(
    socket: &mut TcpStream,
    to: SocketAddr,
    key: &PoolKey,
) -> Result<(), UpstreamError> {
    let Some(client) = key.announced_client else {
        return Ok(());
    };
    let mut header = Vec::new();
    let host = key.to.host.to_string();
    V2Writer::proxy(&mut header, Transport::Stream, client, to)
        .tlv(kind::AUTHORITY, host.as_bytes())
        .finish()
        .map_err(|error| UpstreamError::ProxyHeader(error.to_string()))?;
    socket
        .write_all(&header)
        .await
        .map_err(|error| UpstreamError::ProxyHeader(error.to_string()))
}

/// The causes of failed handshakes; `None` for an unknown one.
type DiagnosisCache = Cache<(HostPort, Option<IpAddr>), Option<Incompatibility>>;

fn diagnosis_cache() -> DiagnosisCache {
    Cache::builder()
        .max_capacity(MAX_DIAGNOSES)
        .time_to_live(DIAGNOSIS_LIFETIME)
        .build()
}

/// The maximum number of origins whose diagnosis is remembered.
const MAX_DIAGNOSES: u64 = 1024;
/// The time for which a diagnosis is remembered: a client that repeats its request causes one diagnosis in this time.
const DIAGNOSIS_LIFETIME: Duration = Duration::from_secs(60);
