//! The listeners of a jail: connections to any destination arrive here, and each destination is turned back into its name.

pub mod names;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use http::StatusCode;
use peername_server::addr::canonical;
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::client_hello::Opening;
use super::explicit_proxy;
use super::tunnel::{Tunnel, TunnelCheck};
use crate::audit::AuditRecord;
use crate::audit::denials::UnrecordedConnection;
use crate::host::{Host, HostPort};
use crate::http::client_connection::ClientConnection;
use crate::http::in_flight::InFlightRecord;
use crate::policy::tunnelled::TunnelledDestination;
use crate::request::refusal::{Refusal, RefusalKind};
use crate::request::target::Destination;
use crate::state::InterceptState;
use crate::stream::client_socket::{ClientSocket, ClientStream};
use names::table::{NameLookup, SyntheticNames};

/// The configuration of a jail's listeners.
#[derive(Debug)]
pub struct JailListener {
    /// The names to which synthetic addresses were assigned.
    pub names: Arc<SyntheticNames>,
    /// The ports on which TLS and HTTP are opened.
    pub opened: BTreeSet<u16>,
    /// The original port of each alternate port. Once the program listens on a port itself, connections to that port on other
    /// hosts arrive at its alternate port.
    pub alternates: BTreeMap<u16, u16>,
    /// The destinations of connections that are relayed as they are (`--allow-tcp`), beside those that rules name.
    pub tunnelled: Vec<TunnelledDestination>,
}

impl JailListener {
    fn original_port(&self, port: u16) -> u16 {
        self.alternates.get(&port).copied().unwrap_or(port)
    }

    /// Serves a connection to its end.
    pub(super) async fn serve(
        &self,
        state: &Arc<InterceptState>,
        stream: TcpStream,
        connection: Arc<ClientConnection>,
        unrecorded: UnrecordedConnection,
    ) {
        let client = &connection.info;
        let Ok(original) = stream.local_addr().map(canonical) else {
            return state.count_failed_connection(client.peer, "closed");
        };
        let record = InFlightRecord::begin(state, &connection, "CONNECT");
        unrecorded.set_recorded();
        let (host, is_unassigned) = self.host_at(original.ip());
        let to = HostPort {
            host,
            port: self.original_port(original.port()),
        };
        let is_opened = self.opened.contains(&to.port);
        let is_tunnelled = self.tunnelled.iter().any(|listed| listed.includes(&to))
            || !is_opened && state.relays(&to);
        let mut tunnel = Tunnel {
            destination: Destination::Named(to.clone()),
            record,
            check: TunnelCheck::Pending,
        };
        let socket = ClientSocket::new(stream, &connection.entry, &connection.cut);
        let stream = ClientStream::new(socket, Vec::new());
        if is_unassigned {
            let detail = "a synthetic address that no name has";
            let refusal = Refusal::new(StatusCode::FORBIDDEN, "unknown_name", detail)
                .with_kind(RefusalKind::Destination);
            return tunnel.refuse_unread(stream, &refusal);
        }
        if is_tunnelled {
            return tunnel.serve_unread(state, stream).await;
        }
        if is_opened {
            return serve_opened(state, connection, tunnel, stream).await;
        }
        let detail = "only connections to hosts that are listed with this port are relayed";
        let refusal = Refusal::new(StatusCode::FORBIDDEN, "tcp_not_allowed", detail)
            .with_kind(RefusalKind::Destination);
        let to = name_localhost(to);
        tunnel.record.remedy = state.port_remedy(&to);
        tunnel.destination = Destination::Named(to);
        tunnel.refuse_unread(stream, &refusal);
    }

    /// The host of a destination address, and whether it is a synthetic address without a name.
    fn host_at(&self, ip: IpAddr) -> (Host, bool) {
        match self.names.find(ip) {
            NameLookup::Name(host) => (host, false),
            NameLookup::Literal(ip) => (ip.into(), false),
            NameLookup::Unassigned => (ip.into(), true),
        }
    }

    /// Records a connection of the program that the kernel has refused, because the jail does not listen on its port.
    pub fn record_refused(&self, state: &InterceptState, addr: SocketAddr) {
        let (host, _) = self.host_at(addr.ip());
        let port = addr.port();
        let to = name_localhost(HostPort { host, port });
        let remedy = state.port_remedy(&to);
        let mut record = AuditRecord::without_connection(to);
        state.sinks.begin_span(&mut record);
        record.remedy = remedy;
        let detail = "no rule names this port, so nothing listens there";
        let refusal = Refusal::new(StatusCode::FORBIDDEN, "port_not_allowed", detail)
            .with_kind(RefusalKind::ClosedPort);
        record.set_unanswered(&refusal);
        state.sinks.finish(&record);
        state.sinks.export(&record);
    }
}

/// The name of a refused destination in reports and remedies: both addresses of the loopback are `localhost`.
fn name_localhost(to: HostPort) -> HostPort {
    if to.host.is_localhost_address() {
        to.at_localhost()
    } else {
        to
    }
}

/// Serves a connection whose TLS and HTTP are opened. If the program is configured with a proxy, its requests to that proxy are
/// answered here instead, each for the target that it names.
async fn serve_opened(
    state: &Arc<InterceptState>,
    connection: Arc<ClientConnection>,
    mut tunnel: Tunnel,
    mut stream: ClientStream,
) {
    let deadline = Instant::now() + state.config.opening_timeout;
    connection.set_opening(true);
    let opening = Opening::read(&mut stream, deadline).await;
    if matches!(opening, Ok(Opening::Http)) && explicit_proxy::is_to_proxy(stream.prefix()) {
        let target = Arc::new(tunnel.destination.to_target());
        tunnel.record.defer_to_tunnel_requests(&target);
        return explicit_proxy::serve(state, connection, stream).await;
    }
    tunnel.serve_opening(state, stream, opening, deadline).await;
}
