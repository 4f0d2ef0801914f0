//! The receiving side: removes the header and finds the session that the payload belongs to.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Instant;

use peername_kernel::data_path::DataPath;

use super::config::UdpConfig;
use super::dialect::reader::HeaderReader;
use super::dialect::{Dialect, SessionHeaders};
use super::drop_reason::DropReason;
use super::endpoints::{ReplyTo, SessionKey};
use super::handover::{FlowState, UdpWorkers};
use super::known_services::KnownServices;
use super::listeners::UdpListeners;
use super::listing::OpenSessions;
use super::lru_table::TableLimits;
use super::session::Session;
use super::session::role::{AdmittedDatagram, Role};
use super::worker::{SharedState, worker_tasks};
use crate::outcome::Failure;
use crate::policy::permit::Permit;
use crate::service::{Service, ServiceHandle};
use crate::telemetry::counters::Counters;
use peername_server::access::clients::HeaderClient;
use peername_server::addr::{ClaimedSource, LocalAddr, Target};
use peername_server::workers::WorkerTask;
use peername_sys::Transport;

/// A proxy for UDP.
#[derive(Clone, Debug)]
pub struct UdpProxy {
    services: ServiceHandle,
    config: UdpConfig,
    shared: SharedState,
}

impl UdpProxy {
    /// A proxy that serves each session by the service that its listener had when the session began. Trust is checked for each
    /// datagram, by the current service.
    ///
    /// Steady sessions are offloaded to `kernel`, if there is one. All sessions are listed in `sessions`.
    pub fn new(
        services: ServiceHandle,
        counters: Arc<Counters>,
        config: UdpConfig,
        kernel: Option<Arc<DataPath>>,
        sessions: OpenSessions,
    ) -> Self {
        Self {
            services,
            config,
            shared: SharedState {
                counters,
                kernel,
                sessions,
            },
        }
    }

    /// Makes the tasks that serve these sockets, one for each worker that has some, and the handles of these workers.
    pub fn worker_tasks(&self, sockets: UdpListeners) -> (Vec<WorkerTask>, UdpWorkers) {
        let role = |limits: TableLimits, listeners: Arc<[_]>| ProxyRole {
            services: self.services.clone(),
            known: KnownServices::new(&self.services, listeners),
            dialect: self.config.dialect,
            headers: HeaderReader::new(
                self.config.dialect,
                TableLimits {
                    unanswered: limits.idle,
                    ..limits
                },
            ),
        };
        worker_tasks(sockets, &self.config, &self.shared, role)
    }
}

/// The proxy's decisions in one worker.
struct ProxyRole {
    services: ServiceHandle,
    known: KnownServices<Service>,
    dialect: Dialect,
    headers: HeaderReader,
}

impl Role for ProxyRole {
    fn admit(
        &mut self,
        bytes: &[u8],
        reply_to: &ReplyTo,
        now: Instant,
    ) -> Result<AdmittedDatagram, DropReason> {
        let peer = reply_to.peer;
        let service = self.known.current(reply_to.listener)?;
        let rules = &service.rules;
        if !rules.config.trust.contains(peer.ip()) {
            self.headers.end_flow(reply_to);
            return Err(Failure::Untrusted.into());
        }
        let header = self.headers.read(bytes, reply_to, now, rules)?;
        let facts = header.claims.facts;
        // Where no header names the client's port, the balancer's port tells clients apart.
        let is_port_named = facts.claim.is_some_and(|claim| claim.0.port() != 0);
        let key = SessionKey {
            listener: reply_to.listener,
            original_destination: reply_to.original_destination,
            local: reply_to
                .local_ip()
                .filter(|_| reply_to.is_transparent || !is_port_named),
            from: if is_port_named {
                SocketAddr::new(peer.ip(), 0)
            } else {
                peer.0
            },
            client: facts.claim.map(|claim| claim.0),
            destination: facts.destination,
        };
        Ok(AdmittedDatagram {
            key,
            balancer: peer.ip(),
            payload: header.len,
            header,
        })
    }

    fn open_socket(&self, admitted: &AdmittedDatagram) -> Result<UdpSocket, Failure> {
        let (service, permit) = self.permit(admitted)?;
        service.connector.open_udp(&permit).inspect_err(|failure| {
            service
                .rules
                .report_failure(permit.target(), Transport::Udp, failure);
        })
    }

    fn verify_source(&self, session: &Session) -> Result<(), Failure> {
        let service = self.known.last(session.key.listener);
        let Some(service) = service.filter(|_| session.key.client.is_some()) else {
            return Ok(());
        };
        let is_on_this_host = service.rules.is_on_this_host(session.upstream.ip());
        service
            .connector
            .verify_udp(&session.socket, session.upstream, is_on_this_host)
            .inspect_err(|failure| {
                let target = Target(session.upstream);
                service
                    .rules
                    .report_failure(target, Transport::Udp, failure);
            })
    }

    fn target(&self, admitted: &AdmittedDatagram) -> Result<Option<SocketAddr>, Failure> {
        let (_, permit) = self.permit(admitted)?;
        Ok(permit.source().map(|_| permit.target().0))
    }

    fn headers(&self, admitted: &AdmittedDatagram) -> Result<SessionHeaders, Failure> {
        Ok(SessionHeaders {
            reply: admitted.header.reply_header(),
            ..SessionHeaders::default()
        })
    }

    fn accept_reply(&mut self, reply_to: &ReplyTo, key: &SessionKey, now: Instant) -> bool {
        self.headers.accept_reply(reply_to, key, now)
    }

    /// `Some` for a client that a header names, with a backend on this host.
    fn offload_port(&self, session: &Session) -> Option<u16> {
        if !self.dialect.has_header_on_each() {
            return None;
        }
        let (id, listener) = self.known.listener(session.reply_to.listener).ok()?;
        let services = self.services.load();
        let rules = &services.get(id)?.rules;
        let is_offloadable = session.key.client.is_some()
            && session.reply_to.original_destination.is_none()
            && rules.is_on_this_host(session.upstream.ip());
        is_offloadable.then(|| listener.0.port())
    }

    fn unclaimed_client(&self, _session: &Session) -> Option<SocketAddr> {
        None
    }

    fn is_denied(&mut self, session: &Session) -> bool {
        let claim = session.key.client.map(ClaimedSource);
        let client = HeaderClient::of_read_header(claim, session.reply_to.peer);
        let service = self.known.current(session.key.listener);
        service.is_ok_and(|service| service.rules.admit_client(client).is_err())
    }

    fn flows(&self, now: Instant) -> Vec<FlowState> {
        self.headers.flows(now)
    }

    fn restore_flow(&mut self, flow: &FlowState, now: Instant) {
        self.headers.restore(flow, now);
    }

    fn tick(&mut self, now: Instant) {
        self.known.refresh();
        self.headers.expire(now);
    }
}

impl ProxyRole {
    /// Decides by the rules of the current service of the datagram's listener.
    fn permit(&self, admitted: &AdmittedDatagram) -> Result<(Arc<Service>, Permit), Failure> {
        let (id, listener) = self.known.listener(admitted.key.listener)?;
        let services = self.services.load();
        let service = services.get(id).ok_or(Failure::NoService)?;
        // The original destination counts as the listener, as for TCP, where getsockname(2) returns it.
        let listener = admitted
            .key
            .original_destination
            .map_or(listener, LocalAddr);
        let permit = Permit::decide(&admitted.header.claims, listener, &service.rules)?;
        Ok((Arc::clone(service), permit))
    }
}
