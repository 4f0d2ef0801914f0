//! The sending side: accepts plain connections and forwards them behind a PROXY header.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use peername_proto::{Transport, V2Writer, WriteError, write_v1};
use peername_relay::{Limits, Method, Pair, Prefix, RelayStats, relay};
use peername_server::access::client_limit::{ClientLimit, ClientPermit};
use peername_server::access::clients::ClientAccess;
use peername_server::addr::{ClaimedSource, PeerAddr, Target, canonical};
use peername_server::listeners::ListenerId;
use peername_server::workers::connections::ConnectionEntry;
use peername_server::workers::services::ServiceHandle;
use peername_server::workers::{Incoming, Serve};
use peername_sys::event::readiness::register_stream;
use peername_sys::socket::upstream::{UpstreamSocket, local_addr};
use peername_sys::tcp::stream;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

use crate::config::SendProxy;
use crate::conn::accept::refuse;
use crate::outcome::{Failure, Outcome};
use crate::telemetry::counters::Counters;
use crate::telemetry::outages;
use crate::telemetry::record::connection::ConnectionRecord;
use crate::upstream_stream::{wait_established, write_all};

/// The header to send: its version, source and TLVs.
#[derive(Clone, Debug)]
pub struct HeaderTemplate {
    /// The version; `None` for no header at all.
    pub version: Option<SendProxy>,
    /// The client's address; `None` for the real peer of each connection.
    pub source: Option<SocketAddr>,
    /// TLVs, in this order (version 2).
    pub tlvs: Vec<(u8, Vec<u8>)>,
    /// Whether a checksum TLV (CRC32C) is added (version 2).
    pub crc32c: bool,
}

/// The receiver, header, timeouts and clients of some listeners.
#[derive(Debug)]
pub struct ForwardService {
    /// The receiver.
    pub target: Target,
    /// The header of each connection and datagram.
    pub header_template: HeaderTemplate,
    /// The connect timeout: from the first SYN to an established connection.
    pub connect_timeout: Duration,
    /// The timeouts of established connections.
    pub limits: Limits,
    /// Which clients may connect. There is no header here: the client is the peer.
    pub clients: Arc<ClientAccess>,
}

/// Forwards each connection by the service that its listener has at the time of accept(2).
#[derive(Debug)]
pub struct Forwarder {
    /// The service of each listener.
    pub services: ServiceHandle<ForwardService>,
    /// The counters of this process.
    pub counters: Arc<Counters>,
    /// The limit of connections of each client.
    pub client_limit: Arc<ClientLimit>,
}

impl HeaderTemplate {
    /// A version 1 header for one client.
    pub fn v1(client: SocketAddr) -> Self {
        Self {
            version: Some(SendProxy::V1),
            source: Some(client),
            tlvs: Vec::new(),
            crc32c: false,
        }
    }

    /// Writes the header of a connection or datagram from `client` to `destination`.
    ///
    /// # Errors
    ///
    /// [`WriteError::TooLong`]: the TLVs don't fit.
    pub fn header(
        &self,
        transport: Transport,
        client: SocketAddr,
        destination: SocketAddr,
    ) -> Result<Vec<u8>, WriteError> {
        let mut out = Vec::new();
        let source = self.source.unwrap_or(client);
        match self.version {
            None => return Ok(out),
            Some(SendProxy::V1) => {
                write_v1(&mut out, source, destination);
                return Ok(out);
            }
            Some(SendProxy::V2) => {}
        }
        let mut writer = V2Writer::proxy(&mut out, transport, source, destination);
        for (kind, value) in &self.tlvs {
            writer = writer.tlv(*kind, value);
        }
        if self.crc32c {
            writer = writer.crc32c();
        }
        writer.finish()?;
        Ok(out)
    }
}

impl Serve for Forwarder {
    type Context = Option<Arc<ForwardService>>;

    fn context(&self, listener: ListenerId) -> Self::Context {
        self.services.load().get(listener).map(Arc::clone)
    }

    fn serve(
        self: Arc<Self>,
        incoming: Incoming,
        entry: Arc<ConnectionEntry>,
        service: Self::Context,
    ) -> impl Future<Output = ()> + Send + 'static {
        let source = service
            .as_ref()
            .and_then(|service| service.header_template.source);
        entry.set_client(ClaimedSource::canonical(source.unwrap_or(incoming.peer.0)));
        let record = ConnectionRecord::begin(&self.counters, &incoming, entry);
        self.forward(incoming, record, service)
    }
}

impl Forwarder {
    async fn forward(
        self: Arc<Self>,
        incoming: Incoming,
        record: ConnectionRecord,
        service: Option<Arc<ForwardService>>,
    ) {
        let opened = match service {
            Some(service) => {
                record.set_target(service.target);
                service.open(incoming, &self).await
            }
            None => Err(refuse(&incoming.stream, Failure::NoService)),
        };
        let outcome = match opened {
            Ok(opened) => opened.relay(record.stats()).await,
            Err(failure) => Outcome::Failed(failure),
        };
        record.end(outcome);
    }
}

/// A connection whose header was sent. It holds nothing of its service, because the list files of a replaced service are
/// read again as long as something holds that service.
struct OpenedConn {
    pair: Pair,
    limits: Limits,
    permit: ClientPermit,
}

impl OpenedConn {
    async fn relay(self, stats: Arc<RelayStats>) -> Outcome {
        let Self {
            pair,
            limits,
            permit,
        } = self;
        let end = relay(pair, Prefix::default(), Method::Auto, limits, stats).await;
        drop(permit);
        Outcome::Relayed(end)
    }
}

impl ForwardService {
    async fn open(&self, incoming: Incoming, forwarder: &Forwarder) -> Result<OpenedConn, Failure> {
        let Incoming { stream, peer, .. } = incoming;
        if let Err(refusal) = self.clients.judge(peer.ip()) {
            return Err(refuse(&stream, refusal.into()));
        }
        let Some(permit) = forwarder.client_limit.try_acquire(peer.ip()) else {
            return Err(refuse(&stream, Failure::TooManyConnections));
        };
        let downstream = register_stream(stream).map_err(Failure::Local)?;
        let upstream = self
            .open_upstream(&downstream, peer, &forwarder.counters)
            .await
            .map_err(|failure| refuse(&downstream, failure))?;
        outages::report_success(self.target.0.into());
        Ok(OpenedConn {
            pair: Pair {
                downstream,
                upstream,
            },
            limits: self.limits,
            permit,
        })
    }

    /// Connects to the receiver and writes the header of `downstream`.
    async fn open_upstream(
        &self,
        downstream: &TcpStream,
        peer: PeerAddr,
        counters: &Counters,
    ) -> Result<TcpStream, Failure> {
        let destination = local_addr(downstream).map_err(Failure::Local)?;
        let header = self
            .header_template
            .header(Transport::Stream, canonical(peer.0), canonical(destination))
            .map_err(Failure::OutboundHeader)?;
        self.connect(&header, counters).await
    }

    async fn connect(&self, header: &[u8], counters: &Counters) -> Result<TcpStream, Failure> {
        let target = self.target.0;
        let started = Instant::now();
        let socket = UpstreamSocket::new_tcp(target).map_err(Failure::Local)?;
        stream::tune_for_peer(&socket, target.ip()).map_err(Failure::Local)?;
        let upstream = socket
            .connect(target)
            .map_err(|error| Failure::from_tcp_connect(self.target, error))?;
        let upstream = register_stream(upstream).map_err(Failure::Local)?;
        let handshake = async {
            wait_established(&upstream).await?;
            write_all(&upstream, header).await
        };
        timeout(self.connect_timeout, handshake)
            .await
            .map_err(|_| Failure::ConnectTimeout {
                upstream: self.target,
                after: self.connect_timeout,
            })?
            .map_err(|error| Failure::Connect {
                upstream: self.target,
                error,
            })?;
        counters.count_connected(started.elapsed());
        Ok(upstream)
    }
}
