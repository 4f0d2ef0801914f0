//! The listeners of a jail: connections to any destination arrive here, and each destination is turned back into its name.

pub mod names;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;
use std::sync::Arc;

use http::StatusCode;
use peername_server::addr::{PeerAddr, canonical};
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::client_hello::Opening;
use super::connect_proxy;
use super::tunnel::{Tunnel, TunnelCheck};
use crate::audit::AuditRecord;
use crate::authz::{AccessRules, ParseRuleError, Rule};
use crate::host::{Host, HostPort, ParseHostError};
use crate::http::client_connection::ClientConnection;
use crate::http::in_flight::InFlightRecord;
use crate::request::client_info::ClientInfo;
use crate::request::id::Id;
use crate::request::refusal::{Refusal, RefusalKind};
use crate::request::target::{Destination, RequestTarget};
use crate::state::InterceptState;
use crate::stream::client_socket::ClientSocket;
use crate::stream::prefixed::ClientStream;
use names::table::{NameLookup, SyntheticNames};

/// The configuration of a jail's listeners.
#[derive(Debug)]
pub struct JailListener {
    /// The names to which synthetic addresses were assigned.
    pub names: Arc<SyntheticNames>,
    /// The ports on which TLS and HTTP are opened.
    pub opened: BTreeSet<u16>,
    /// By alternate port: the original port. Once the program has taken a port for itself, connections to the same port
    /// elsewhere arrive at its alternate.
    pub alternates: BTreeMap<u16, u16>,
    /// The destinations of connections that are relayed as they are (`--allow-tcp`), beside those that rules name.
    pub tunnelled: Vec<TunnelledDestination>,
}

/// A destination whose connections are relayed as they are: a rule with a port and nothing else, `HOST:PORT`.
#[derive(Clone, Debug)]
pub struct TunnelledDestination {
    rule: Rule,
    port: u16,
}

/// Why a text is not a host, domain or network with a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseTunnelledError {
    /// An IPv6 address with a port behind it, and no brackets.
    #[error(transparent)]
    Unbracketed(ParseRuleError),
    /// Anything else.
    #[error("use HOST:PORT, such as github.com:22, *.example.com:5432 or 192.0.2.7:22")]
    Form,
}

impl FromStr for TunnelledDestination {
    type Err = ParseTunnelledError;

    fn from_str(text: &str) -> Result<Self, ParseTunnelledError> {
        let rule = Rule::allow(text).map_err(|error| match error {
            ParseRuleError::Port(ParseHostError::Unbracketed(_)) => {
                ParseTunnelledError::Unbracketed(error)
            }
            _ => ParseTunnelledError::Form,
        })?;
        Self::from_rule(rule).ok_or(ParseTunnelledError::Form)
    }
}

impl TunnelledDestination {
    /// The destination of every host, on one port.
    #[must_use]
    pub fn every_host(port: u16) -> Self {
        Self {
            rule: Rule::allow_port(port),
            port,
        }
    }

    /// The destination of a rule that has a port, and neither methods nor a path.
    #[must_use]
    pub fn from_rule(rule: Rule) -> Option<Self> {
        let port = rule.port().filter(|_| !rule.is_partial())?;
        Some(Self { rule, port })
    }

    /// Access lists that deny everything but these destinations.
    #[must_use]
    pub fn access_rules(tunnelled: &[Self]) -> AccessRules {
        AccessRules::deny_others(tunnelled.iter().map(|listed| listed.rule.clone()).collect())
    }

    /// The port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }
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
    ) {
        let client = &connection.info;
        let Ok(original) = stream.local_addr().map(canonical) else {
            return state.count_failed_connection(client.peer, "closed");
        };
        let record = InFlightRecord::begin(state, &connection, "CONNECT");
        let (host, is_unassigned) = self.host_at(original.ip());
        let to = HostPort {
            host,
            port: self.original_port(original.port()),
        };
        let is_opened = self.opened.contains(&to.port);
        let is_tunnelled = self
            .tunnelled
            .iter()
            .any(|listed| listed.rule.allows_tunnel(&to))
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
        let program = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let client = ClientInfo::new(Id::next(), PeerAddr(program), program);
        let mut record = AuditRecord::new(Arc::new(client), "CONNECT");
        state.sinks.begin_span(&mut record);
        record.remedy = state.port_remedy(&to);
        record.target = Some(Arc::new(RequestTarget::plain(to, None)));
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
    if to.host.is_loopback() {
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
    if matches!(opening, Ok(Opening::Http)) && connect_proxy::is_to_proxy(stream.prefix()) {
        let target = Arc::new(tunnel.destination.to_target());
        tunnel.record.defer_to_tunnel_requests(&target);
        return connect_proxy::serve(state, connection, stream).await;
    }
    tunnel.serve_opening(state, stream, opening, deadline).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tunnelled_destinations_are_hosts_domains_and_networks_with_a_port() {
        let includes = |listed: &str, to: &str| {
            let listed: TunnelledDestination = listed.parse().unwrap();
            listed.rule.allows_tunnel(&HostPort::parse(to).unwrap())
        };
        assert!(includes("a.test:22", "A.test:22"));
        assert!(!includes("a.test:22", "a.test:23") && !includes("a.test:22", "b.test:22"));
        assert!(includes("*.a.test:22", "b.a.test:22"));
        assert!(includes("*:22", "b.test:22") && !includes("*:22", "b.test:23"));
        assert!(includes("192.0.2.7:22", "192.0.2.7:22"));
        assert!(includes("[2001:db8::]/32:22", "[2001:db8::7]:22"));
        assert!(includes("[2001:db8::/32]:22", "[2001:db8::7]:22"));
        assert!(includes("[2001:db8::7]:22", "[2001:db8::7]:22"));
        let rule = |text: &str| TunnelledDestination::from_rule(Rule::allow(text).unwrap());
        let listed = rule("*.a.test:22").unwrap();
        assert!(
            listed
                .rule
                .allows_tunnel(&HostPort::parse("b.a.test:22").unwrap())
        );
        assert!(rule("a.test").is_none() && rule("a.test:22/x").is_none());
        for wrong in ["a.test", "a.test:0", "a.test:65536", ":22", "a.test:ssh"] {
            assert!(wrong.parse::<TunnelledDestination>().is_err(), "{wrong}");
        }
    }
}
