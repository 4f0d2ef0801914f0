//! The sending side: one session for each client, with a header in front of its requests.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Instant;

use peername_sys::SyscallError;
use peername_sys::socket::upstream::UpstreamSocket;

use super::config::UdpConfig;
use super::dialect::SessionHeaders;
use super::dialect::header::DatagramHeader;
use super::drop_reason::DropReason;
use super::endpoints::{ReplyTo, SessionKey};
use super::listeners::UdpListeners;
use super::listing::OpenSessions;
use super::session::Session;
use super::session::role::{AdmittedDatagram, Role};
use super::worker::{self, Shared};
use crate::forward::HeaderTemplate;
use crate::outcome::Failure;
use crate::telemetry::counters::Counters;
use peername_server::addr::{ClaimedSource, Target};
use peername_server::workers::WorkerTask;

/// Forwards datagrams behind a header.
#[derive(Clone, Debug)]
pub struct UdpForwarder {
    /// The address that datagrams are forwarded to.
    pub target: Target,
    /// The contents of PROXY headers.
    pub header_template: HeaderTemplate,
    /// Dialect and limits.
    pub config: UdpConfig,
    /// Counters of the process.
    pub counters: Arc<Counters>,
    /// The list of its sessions.
    pub sessions: OpenSessions,
}

impl UdpForwarder {
    /// The tasks that serve these sockets: one for each worker that has some.
    pub fn worker_tasks(&self, sockets: UdpListeners) -> Vec<WorkerTask> {
        let limits = worker::limits(&self.config, sockets.workers());
        let listeners = sockets.addrs();
        let role = || ForwarderRole {
            forwarder: self.clone(),
            listeners: listeners.clone(),
        };
        let shared = Shared {
            counters: Arc::clone(&self.counters),
            kernel: None,
            sessions: self.sessions.clone(),
        };
        worker::worker_tasks(sockets, limits, &shared, role)
    }
}

/// The forwarder's decisions in one worker.
struct ForwarderRole {
    forwarder: UdpForwarder,
    listeners: Vec<SocketAddr>,
}

impl Role for ForwarderRole {
    fn admit(
        &mut self,
        _bytes: &[u8],
        reply_to: &ReplyTo,
        _now: Instant,
    ) -> Result<AdmittedDatagram, DropReason> {
        let listener = self.listeners.get(reply_to.listener).copied();
        // A client may send to several addresses of a listener on all addresses; each must send its own replies.
        let destination = listener.map(|listener| {
            let asked = reply_to
                .local
                .map_or_else(|| listener.ip(), |local| local.ip);
            SocketAddr::new(asked.to_canonical(), listener.port())
        });
        Ok(AdmittedDatagram {
            key: SessionKey {
                listener: reply_to.listener,
                original_destination: reply_to.original_destination,
                from: reply_to.peer.0,
                client: None,
                destination,
            },
            balancer: reply_to.peer.ip(),
            payload: 0,
            header: DatagramHeader {
                claim: None,
                destination,
                peer: reply_to.peer,
                len: 0,
                spp: None,
            },
        })
    }

    fn open_socket(&self, _admitted: &AdmittedDatagram) -> Result<UdpSocket, Failure> {
        let upstream = self.forwarder.target;
        let socket = UpstreamSocket::new_udp(upstream.0).map_err(Failure::Local)?;
        let refused = |failed: SyscallError| Failure::Connect {
            upstream,
            error: failed.source,
        };
        socket.connect_udp(upstream.0).map_err(refused)
    }

    /// None: no header names a client here, so sessions don't fail over.
    fn target(&self, _admitted: &AdmittedDatagram) -> Result<Option<SocketAddr>, Failure> {
        Ok(None)
    }

    fn headers(&self, admitted: &AdmittedDatagram) -> Result<SessionHeaders, Failure> {
        let header_template = &self.forwarder.header_template;
        let client = header_template.source.unwrap_or(admitted.header.peer.0);
        let client = ClaimedSource::canonical(client).0;
        let destination = admitted.header.destination.unwrap_or(client);
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
        let source = self.forwarder.header_template.source;
        Some(ClaimedSource::canonical(source.unwrap_or(session.reply_to.peer.0)).0)
    }

    fn tick(&mut self, _now: Instant) {}
}
