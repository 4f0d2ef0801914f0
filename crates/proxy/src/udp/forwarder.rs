//! The sending side: one session for each client, with a header in front of its requests.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Instant;

use peername_sys::socket::upstream::UpstreamSocket;

use super::config::UdpConfig;
use super::dialect::SessionHeaders;
use super::dialect::header::DatagramHeader;
use super::drop_reason::DropReason;
use super::endpoints::{ReplyTo, SessionKey};
use super::handover::{FlowState, UdpWorkers};
use super::known_services::KnownServices;
use super::listeners::UdpListeners;
use super::listing::OpenSessions;
use super::session::Session;
use super::session::role::{AdmittedDatagram, Role};
use super::worker::{SharedState, worker_tasks};
use crate::forward::ForwardService;
use crate::outcome::Failure;
use crate::policy::claims::{Claims, HeaderFacts};
use crate::telemetry::counters::Counters;
use peername_server::access::client_limit::client_prefix;
use peername_server::addr::ClaimedSource;
use peername_server::workers::WorkerTask;
use peername_server::workers::services::ServiceHandle;

/// Forwards datagrams behind a header.
#[derive(Clone, Debug)]
pub struct UdpForwarder {
    /// The service of each listener. A session keeps the one that it began with.
    pub services: ServiceHandle<ForwardService>,
    /// Dialect and limits.
    pub config: UdpConfig,
    /// Counters of the process.
    pub counters: Arc<Counters>,
    /// Lists the forwarder's sessions.
    pub sessions: OpenSessions,
}

impl UdpForwarder {
    /// Makes the tasks that serve these sockets, one for each worker that has some, and the handles of these workers.
    pub fn worker_tasks(&self, sockets: UdpListeners) -> (Vec<WorkerTask>, UdpWorkers) {
        let role = |_, listeners| ForwarderRole {
            forwarder: self.clone(),
            known: KnownServices::new(&self.services, listeners),
        };
        let shared = SharedState {
            counters: Arc::clone(&self.counters),
            kernel: None,
            sessions: self.sessions.clone(),
        };
        worker_tasks(sockets, &self.config, &shared, role)
    }
}

/// The forwarder's decisions in one worker.
struct ForwarderRole {
    forwarder: UdpForwarder,
    known: KnownServices<ForwardService>,
}

impl Role for ForwarderRole {
    fn admit(
        &mut self,
        _bytes: &[u8],
        reply_to: &ReplyTo,
        _now: Instant,
    ) -> Result<AdmittedDatagram, DropReason> {
        let listener = self.known.listener(reply_to.listener).ok();
        let listener = listener.map(|(_, address)| address.0);
        let destination = listener.map(|listener| {
            let ip = reply_to.local_ip().unwrap_or_else(|| listener.ip());
            SocketAddr::new(ip.to_canonical(), listener.port())
        });
        let facts = HeaderFacts {
            destination,
            ..HeaderFacts::default()
        };
        Ok(AdmittedDatagram {
            key: SessionKey {
                listener: reply_to.listener,
                original_destination: reply_to.original_destination,
                // A client may send to several addresses of a listener on all addresses, and each must send its own replies.
                local: reply_to.local_ip(),
                from: reply_to.peer.0,
                client: None,
                destination: None,
            },
            balancer: client_prefix(reply_to.peer.ip()),
            payload: 0,
            header: DatagramHeader {
                claims: Claims::from_datagram(facts, reply_to.peer),
                len: 0,
                spp: None,
            },
        })
    }

    fn open_socket(&self, admitted: &AdmittedDatagram) -> Result<UdpSocket, Failure> {
        let service = self.service(admitted)?;
        service.clients.judge(admitted.header.claims.peer.ip())?;
        let upstream = service.target;
        let socket = UpstreamSocket::new_udp(upstream.0).map_err(Failure::Local)?;
        socket
            .connect_udp(upstream.0)
            .map_err(|error| Failure::from_udp_connect(upstream, error))
    }

    /// Not needed: the forwarder connects from its own address.
    fn verify_source(&self, _session: &Session) -> Result<(), Failure> {
        Ok(())
    }

    /// `None`: no header names a client here, so sessions don't fail over.
    fn target(&self, _admitted: &AdmittedDatagram) -> Result<Option<SocketAddr>, Failure> {
        Ok(None)
    }

    fn headers(&self, admitted: &AdmittedDatagram) -> Result<SessionHeaders, Failure> {
        let service = self.service(admitted)?;
        let header_template = &service.header_template;
        let client = header_template
            .source
            .unwrap_or(admitted.header.claims.peer.0);
        let client = ClaimedSource::canonical(client).0;
        let destination = admitted.header.claims.facts.destination.unwrap_or(client);
        let dialect = self.forwarder.config.dialect;
        let headers = dialect.write_headers(header_template, client, destination);
        headers.map_err(Failure::OutboundHeader)
    }

    fn accept_reply(&mut self, _reply_to: &ReplyTo, _key: &SessionKey, _now: Instant) -> bool {
        true
    }

    fn offload_port(&self, _session: &Session) -> Option<u16> {
        None
    }

    /// There are no balancers: each peer is a client.
    fn unclaimed_client(&self, session: &Session) -> Option<SocketAddr> {
        let (id, _) = self.known.listener(session.key.listener).ok()?;
        let services = self.forwarder.services.load();
        let service = services
            .get(id)
            .or_else(|| self.known.last(session.key.listener))?;
        let source = service.header_template.source;
        Some(ClaimedSource::canonical(source.unwrap_or(session.reply_to.peer.0)).0)
    }

    fn is_denied(&mut self, session: &Session) -> bool {
        let peer = session.reply_to.peer.ip();
        let service = self.known.current(session.key.listener);
        service.is_ok_and(|service| service.clients.judge(peer).is_err())
    }

    fn flows(&self, _now: Instant) -> Vec<FlowState> {
        Vec::new()
    }

    fn restore_flow(&mut self, _flow: &FlowState, _now: Instant) {}

    fn tick(&mut self, _now: Instant) {
        self.known.refresh();
    }
}

impl ForwarderRole {
    /// The current service of a datagram's listener.
    fn service(&self, admitted: &AdmittedDatagram) -> Result<Arc<ForwardService>, Failure> {
        let (id, _) = self.known.listener(admitted.key.listener)?;
        let services = self.forwarder.services.load();
        let service = services.get(id).ok_or(Failure::NoService)?;
        Ok(Arc::clone(service))
    }
}
