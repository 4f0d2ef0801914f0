//! The configuration of connections to origins.

use std::path::PathBuf;
use std::time::Duration;

use super::upstream_proxy::UpstreamProxy;
use crate::policy::destination::Destinations;
use crate::policy::host_timeouts::HostTimeouts;

/// How origins are reached.
#[derive(Debug)]
pub struct UpstreamConfig {
    /// The addresses that may be connected to.
    pub destinations: Destinations,
    /// Authorities to trust beside the host's own (`--extra-ca`).
    pub extra_ca: Vec<PathBuf>,
    /// A proxy to go through (`--upstream-proxy`).
    pub proxy: Option<UpstreamProxy>,
    /// Whether each connection begins with a PROXY header of version 2 that names the client.
    pub send_proxy: bool,
    /// The timeout for a TCP connection.
    pub connect_timeout: Duration,
    /// The timeout for a TLS handshake.
    pub handshake_timeout: Duration,
    /// The timeout from the end of the request to the head of the response, or from the last byte of the request that
    /// was sent.
    pub response_timeout: Duration,
    /// The same for hosts with another one.
    pub response_timeouts: HostTimeouts,
    /// How long a connection stays in the idle pool, and how long a client may send nothing of its request.
    pub idle_timeout: Duration,
    /// The connection cap: how many connections there may be at a time, idle ones included.
    pub max_connections: usize,
}
