//! The sending side: accepts plain connections and forwards them behind a PROXY header.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use peername_proto::{Transport, V2Writer, WriteError, write_v1};
use peername_relay::{Limits, Method, Pair, Prefix, RelayStats, relay};
use peername_server::access::client_limit::{ClientLimit, ClientPermit};
use peername_server::access::clients::{ClientAccess, ClientRefusal};
use peername_server::addr::{ClaimedSource, PeerAddr, Target, canonical};
use peername_server::listeners::ListenerId;
use peername_server::workers::connections::ConnectionEntry;
use peername_server::workers::services::ServiceHandle;
use peername_server::workers::{Incoming, Serve};
use peername_sys::event::readiness::register_stream;
use peername_sys::socket::upstream::{UpstreamSocket, local_addr};
use peername_sys::tcp::stream;
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::config::SendProxy;
use crate::conn::accept::refuse;
use crate::outcome::{Failure, Outcome};
use crate::telemetry::counters::Counters;
use crate::telemetry::outages;
use crate::telemetry::record::connection::ConnectionRecord;
use crate::upstream_stream::{wait_connected, write_header};

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

/// The service of a connection: that of its listener at accept(2).
#[derive(Clone, Debug)]
pub struct AcceptingForward {
    listener: ListenerId,
    service: Arc<ForwardService>,
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
    type Context = Option<AcceptingForward>;

    fn context(&self, listener: ListenerId) -> Self::Context {
        let service = Arc::clone(self.services.load().get(listener)?);
        Some(AcceptingForward { listener, service })
    }

    fn serve(
        self: Arc<Self>,
        incoming: Incoming,
        entry: Arc<ConnectionEntry>,
        accepting: Self::Context,
    ) -> impl Future<Output = ()> + Send + 'static {
        let source = accepting
            .as_ref()
            .and_then(|accepting| accepting.service.header_template.source);
        entry.set_client(ClaimedSource::canonical(source.unwrap_or(incoming.peer.0)));
        let record = ConnectionRecord::begin(&self.counters, &incoming, entry);
        self.forward(incoming, record, accepting)
    }
}

impl Forwarder {
    async fn forward(
        self: Arc<Self>,
        incoming: Incoming,
        record: ConnectionRecord,
        accepting: Option<AcceptingForward>,
    ) {
        let opened = match accepting {
            Some(accepting) => {
                record.set_target(accepting.service.target);
                match self.admit(&accepting, incoming.peer) {
                    Ok(()) => accepting.service.open(incoming, &self).await,
                    Err(refusal) => Err(refuse(&incoming.stream, refusal.into())),
                }
            }
            None => Err(refuse(&incoming.stream, Failure::NoService)),
        };
        let outcome = match opened {
            Ok(opened) => opened.relay(record.stats()).await,
            Err(failure) => Outcome::Failed(failure),
        };
        record.end(outcome);
    }

    /// Applies the lists of clients that the connection was accepted with, and those that are in force now: after accept(2),
    /// while another worker handed the connection off, a reload may have denied its client. To be called once the connection is
    /// listed, so that a later change finds the connection and ends it.
    ///
    /// Only the former are left for a listener that a reload has closed. A changed list file changes these, too.
    fn admit(&self, accepting: &AcceptingForward, peer: PeerAddr) -> Result<(), ClientRefusal> {
        accepting.service.clients.judge(peer.ip())?;
        match self.services.load().get(accepting.listener) {
            Some(in_force) => in_force.clients.judge(peer.ip()),
            None => Ok(()),
        }
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
        wait_connected(&upstream, self.target, self.connect_timeout).await?;
        write_header(&upstream, self.target, header, self.connect_timeout).await?;
        counters.count_connected(started.elapsed());
        Ok(upstream)
    }
}

#[cfg(test)]
mod tests {
    use peername_server::access::clients::{ListOptions, RequiredTlvs};
    use peername_server::access::max_connections::MaxConnections;
    use peername_server::workers::services::Services;

    use super::*;

    fn services(listener: ListenerId, denied: &str) -> Services<ForwardService> {
        let options = ListOptions {
            deny: vec![denied.to_owned()],
            ..ListOptions::default()
        };
        let clients = ClientAccess::new(options, RequiredTlvs::default()).unwrap();
        let service = ForwardService {
            target: Target("192.0.2.20:443".parse().unwrap()),
            header_template: HeaderTemplate::v1("192.0.2.1:4000".parse().unwrap()),
            connect_timeout: Duration::from_secs(1),
            limits: Limits::default(),
            clients: Arc::new(clients),
        };
        [(listener, Arc::new(service))].into_iter().collect()
    }

    /// A worker hands the connection off to another one, which reports the clients to end before it receives the connection.
    #[test]
    fn client_that_a_reload_denies_after_accept_is_refused() {
        let listener = ListenerId(0);
        let forwarder = Forwarder {
            services: ServiceHandle::new(services(listener, "198.51.100.8")),
            counters: Arc::default(),
            client_limit: Arc::new(ClientLimit::new(MaxConnections::new(10))),
        };
        let peers = ["198.51.100.7:4000", "198.51.100.8:4000"];
        let [client, denied] = peers.map(|peer| PeerAddr(peer.parse().unwrap()));
        let accepting = forwarder.context(listener).unwrap();
        assert!(forwarder.admit(&accepting, client).is_ok());
        assert!(forwarder.admit(&accepting, denied).is_err());
        let after = services(listener, "198.51.100.7");
        forwarder.services.replace(after);
        assert!(forwarder.admit(&accepting, client).is_err());
        // The list of a closed listener stays.
        forwarder.services.replace(Services::from_iter([]));
        assert!(forwarder.admit(&accepting, client).is_ok());
        assert!(forwarder.admit(&accepting, denied).is_err());
    }
}
