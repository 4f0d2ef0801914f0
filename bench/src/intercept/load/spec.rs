//! The parameters of a load on an intercepting proxy.

use std::net::SocketAddrV4;
use std::path::PathBuf;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::host::procfs::ProcessTree;

/// The name of the metric that is compared.
pub(crate) const CPU: &str = "CPU s/1000";
/// The name of the metric that counts distinct certificates that clients received.
pub(crate) const CERTIFICATES: &str = "certificates";

/// The domain of all hosts; the proxy must resolve its names to the origin.
pub(crate) const DOMAIN: &str = "bench.test";

/// Size and pattern of a load.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, clap::Args)]
pub(crate) struct LoadShape {
    /// Requests in all
    #[arg(long, value_name = "N", default_value_t = Self::WARM.requests)]
    pub(crate) requests: usize,
    /// Distinct hosts that the requests are for, in turns
    #[arg(long, value_name = "N", default_value_t = Self::WARM.hosts)]
    pub(crate) hosts: usize,
    /// Concurrent connections
    #[arg(long, value_name = "N", default_value_t = Self::WARM.clients)]
    pub(crate) clients: usize,
    /// Requests on each connection
    #[arg(long, value_name = "N", default_value_t = Self::WARM.each)]
    pub(crate) each: usize,
    /// Concurrent requests on each connection; more than one selects HTTP/2
    #[arg(long, value_name = "N", default_value_t = Self::WARM.streams)]
    pub(crate) streams: usize,
    /// Resume TLS sessions
    #[arg(long)]
    pub(crate) resume: bool,
    /// All clients open their first connection, then begin their handshakes at the same instant
    #[arg(long)]
    pub(crate) at_once: bool,
}

impl LoadShape {
    /// A connection for each request, all to one host.
    pub(crate) const WARM: Self = Self {
        requests: 1000,
        hosts: 1,
        clients: 8,
        each: 1,
        streams: 1,
        resume: false,
        at_once: false,
    };

    /// Reduces the load to at most `requests`, so that every part of it is still exercised.
    pub(crate) fn shrink(&mut self, requests: usize) {
        self.requests = self.requests.min(requests);
        self.clients = self.clients.min(requests);
        self.each = self.each.min(self.requests / self.clients);
    }
}

/// How clients reach the hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// They connect to the origin.
    Direct,
    /// They connect to a proxy, and send CONNECT.
    Proxy(SocketAddrV4),
    /// They resolve the host's name for each connection, and connect to that address: in a jail.
    Resolve,
}

/// The parameters of a load.
pub(crate) struct TlsLoadSpec {
    pub(crate) shape: LoadShape,
    pub(crate) route: Route,
    pub(crate) origin: SocketAddrV4,
    /// The CAs that clients trust.
    pub(crate) authority: PathBuf,
    /// The origin's root CA, to query its handshake count.
    pub(crate) root: PathBuf,
    /// The process tree to measure the CPU time of.
    pub(crate) watch: Option<ProcessTree>,
    /// Called between warm-up and load.
    pub(crate) begin: Option<fn() -> Result<()>>,
}
