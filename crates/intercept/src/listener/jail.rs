//! The listeners of a jail: any destination's connections arrive, and each destination is a name.

pub mod names;

use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;
use std::sync::Arc;

use http::StatusCode;
use peername_server::addr::canonical;
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::client_hello::Opening;
use super::connect_proxy;
use super::tunnel::{Tunnel, TunnelCheck};
use crate::authz::Rule;
use crate::host::HostPort;
use crate::http::client_connection::ClientConnection;
use crate::http::in_flight::InFlightRecord;
use crate::policy::host_port_path::Parts;
use crate::policy::passthrough::HostPattern;
use crate::request::refusal::Refusal;
use crate::request::target::Destination;
use crate::state::InterceptState;
use crate::stream::client_socket::ClientSocket;
use crate::stream::prefixed::ClientStream;
use names::table::{NameLookup, SyntheticNames};

/// What the connections of a jail are served by.
#[derive(Debug)]
pub struct JailListener {
    /// The names that synthetic addresses were given to.
    pub names: Arc<SyntheticNames>,
    /// The ports on which TLS and HTTP are opened.
    pub opened: BTreeSet<u16>,
    /// The port that was meant, by the one at which connections to it arrive once the program has taken it.
    pub alternates: BTreeMap<u16, u16>,
    /// The destinations of connections that are relayed as they are (`--allow-tcp`).
    pub tunnelled: Vec<TunnelledDestination>,
}

/// A destination whose connections are relayed as they are: `HOST:PORT`, where HOST is what [`HostPattern`] accepts, or `*`.
#[derive(Clone, Debug)]
pub struct TunnelledDestination {
    /// `None` for every host.
    host: Option<HostPattern>,
    port: u16,
}

/// Not a host, domain or network with a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("use HOST:PORT, such as github.com:22, *.example.com:5432 or 192.0.2.7:22")]
pub struct ParseTunnelledError;

impl FromStr for TunnelledDestination {
    type Err = ParseTunnelledError;

    fn from_str(text: &str) -> Result<Self, ParseTunnelledError> {
        let parts = Parts::split(text).map_err(|_| ParseTunnelledError)?;
        let host = match parts.host.as_str() {
            "*" => None,
            host => Some(host.parse().map_err(|_| ParseTunnelledError)?),
        };
        match (parts.port, parts.path) {
            (Some(port), None) => Ok(Self { host, port }),
            _ => Err(ParseTunnelledError),
        }
    }
}

impl TunnelledDestination {
    /// Every host, on one port.
    #[must_use]
    pub fn every_host(port: u16) -> Self {
        Self { host: None, port }
    }

    /// The destination of a rule that has a port and no path.
    #[must_use]
    pub fn from_rule(rule: &Rule) -> Option<Self> {
        let (host, port) = rule.as_tunnel()?;
        let host = host.cloned();
        Some(Self { host, port })
    }

    /// The port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    fn includes(&self, to: &HostPort) -> bool {
        let mut host = self.host.iter();
        self.port == to.port && host.all(|pattern| pattern.includes(&to.host))
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
            return state.count_unopened(client.peer, "closed");
        };
        let record = InFlightRecord::begin(state, &connection, "CONNECT");
        let (host, is_unassigned) = match self.names.find(original.ip()) {
            NameLookup::Name(host) => (host, false),
            NameLookup::Literal(ip) => (ip.into(), false),
            NameLookup::Unassigned => (original.ip().into(), true),
        };
        let to = HostPort {
            host,
            port: self.original_port(original.port()),
        };
        let (is_tunnelled, is_opened) = (
            self.tunnelled.iter().any(|listed| listed.includes(&to)),
            self.opened.contains(&to.port),
        );
        let tunnel = Tunnel {
            destination: Destination::Named(to),
            record,
            check: TunnelCheck::Pending,
        };
        let socket = ClientSocket::new(stream, &connection.entry, &connection.cut);
        let stream = ClientStream::new(socket, Vec::new());
        if is_unassigned {
            let detail = "a synthetic address that no name has";
            let refusal = Refusal::new(StatusCode::FORBIDDEN, "unknown_name", detail);
            return tunnel.refuse_unread(stream, &refusal);
        }
        match (is_tunnelled, is_opened) {
            (true, _) => tunnel.serve_unread(state, stream).await,
            (false, true) => serve_opened(state, connection, tunnel, stream).await,
            (false, false) => {
                let detail = "a port that is open to the destinations of --allow-tcp only";
                let refusal = Refusal::new(StatusCode::FORBIDDEN, "tcp_not_allowed", detail);
                tunnel.refuse_unread(stream, &refusal);
            }
        }
    }
}

/// Serves a connection that is opened. The program may be configured for a proxy, which is not reached: its requests are answered in
/// place of that, each for the target that it names.
async fn serve_opened(
    state: &Arc<InterceptState>,
    connection: Arc<ClientConnection>,
    mut tunnel: Tunnel,
    mut stream: ClientStream,
) {
    let deadline = Instant::now() + state.rules.opening_timeout;
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
            listed.includes(&HostPort::parse(to).unwrap())
        };
        assert!(includes("a.test:22", "A.test:22"));
        assert!(!includes("a.test:22", "a.test:23") && !includes("a.test:22", "b.test:22"));
        assert!(includes("*.a.test:22", "b.a.test:22"));
        assert!(includes("*:22", "b.test:22") && !includes("*:22", "b.test:23"));
        assert!(includes("192.0.2.7:22", "192.0.2.7:22"));
        assert!(includes("[2001:db8::]/32:22", "[2001:db8::7]:22"));
        assert!(includes("[2001:db8::/32]:22", "[2001:db8::7]:22"));
        assert!(includes("[2001:db8::7]:22", "[2001:db8::7]:22"));
        let rule = |text: &str| TunnelledDestination::from_rule(&Rule::allow(text).unwrap());
        let listed = rule("*.a.test:22").unwrap();
        assert!(listed.includes(&HostPort::parse("b.a.test:22").unwrap()));
        assert!(rule("a.test").is_none() && rule("a.test:22/x").is_none());
        for wrong in ["a.test", "a.test:0", "a.test:65536", ":22", "a.test:ssh"] {
            assert!(wrong.parse::<TunnelledDestination>().is_err(), "{wrong}");
        }
    }
}
