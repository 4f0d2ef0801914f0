//! What the reply path is tested for: a backend, and the firewall mark of connections to it.

use std::net::IpAddr;
use std::num::NonZeroU32;

use peername_sys::netlink::Transport;

use crate::backend::Backend;

/// A backend whose replies have to come back.
#[derive(Clone, Copy, Debug)]
pub struct ProbeTarget {
    /// Where it is.
    pub backend: Backend,
    /// Whether it stands for every port of its address: a thousand ports are tested once.
    pub any_port: bool,
    /// The mark of connections to it: routing rules may select by it.
    pub mark: Option<NonZeroU32>,
}

/// Targets with the same key share one test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct ProbeKey {
    ip: IpAddr,
    transport: Transport,
    port: Option<u16>,
    mark: Option<NonZeroU32>,
}

impl ProbeTarget {
    /// On loopback one routing rule covers all of it, whatever the port.
    pub(super) fn key(&self) -> ProbeKey {
        let Backend { address, transport } = self.backend;
        let ip = address.ip().to_canonical();
        let any_port = self.any_port || ip.is_loopback();
        ProbeKey {
            ip,
            transport,
            port: (!any_port).then(|| address.port()),
            mark: self.mark,
        }
    }
}

impl<B: Into<Backend>> From<B> for ProbeTarget {
    fn from(backend: B) -> Self {
        Self {
            backend: backend.into(),
            any_port: false,
            mark: None,
        }
    }
}
