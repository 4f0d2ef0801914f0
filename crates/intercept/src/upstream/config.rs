//! The configuration of connections to origins.

use std::path::PathBuf;
use std::time::Duration;

use super::upstream_proxy::UpstreamProxy;
use crate::host::HostPort;
use crate::policy::destination::Destinations;
use crate::policy::host_timeouts::HostTimeouts;

/// The configuration of connections to origins.
#[derive(Debug)]
pub struct UpstreamConfig {
    /// The policy for destinations.
    pub destinations: Destinations,
    /// Authorities to trust beside the host's own (`--extra-ca`).
    pub extra_ca: Vec<PathBuf>,
    /// The proxy on the path to all origins (`--upstream-proxy`).
    pub proxy: Option<UpstreamProxy>,
    /// Whether each connection begins with a PROXY header of version 2 that names the client.
    pub send_proxy: bool,
    /// The timeout for a TCP connection.
    pub connect_timeout: Duration,
    /// The timeout for a TLS handshake.
    pub handshake_timeout: Duration,
    /// The timeout from the last byte of the request that was sent to the head of the response.
    pub response_timeout: Duration,
    /// The response timeouts of single hosts, in place of `response_timeout`.
    pub response_timeouts: HostTimeouts,
    /// How long a request waits for the next bytes of its client's body. The idle pool uses the idle timeout of client
    /// connections instead.
    pub idle_timeout: Duration,
    /// The connection cap: the maximum number of connections, idle ones included.
    pub max_connections: usize,
}

impl UpstreamConfig {
    /// Whether a request for a name may be sent to its port, at some address. An upstream proxy decides on that itself.
    pub(crate) fn may_open_port(&self, to: &HostPort) -> bool {
        self.proxy.is_some() || self.destinations.may_open_port(to)
    }
}
