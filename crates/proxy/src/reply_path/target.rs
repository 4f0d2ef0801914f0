//! The target of a probe: a backend, and the firewall mark of connections to it.

use std::net::IpAddr;
use std::num::NonZeroU32;

use peername_sys::Transport;

use crate::backend::Backend;

/// A backend with a reply path that is to be probed.
#[derive(Clone, Copy, Debug)]
pub struct ProbeTarget {
    /// The backend.
    pub backend: Backend,
    /// Whether one probe covers every port of the backend's address: a range of a thousand ports is probed once.
    pub any_port: bool,
    /// The mark (SO_MARK) of connections to the backend: routing rules may select by it.
    pub mark: Option<NonZeroU32>,
    /// Whether a keeper restores the rules for the backend.
    pub is_kept: bool,
}

/// Identifies a probe: targets with the same key share one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct ProbeKey {
    ip: IpAddr,
    transport: Transport,
    port: Option<u16>,
    mark: Option<NonZeroU32>,
}

impl ProbeTarget {
    /// A backend to which connections have this mark.
    pub(super) fn marked(backend: Backend, mark: Option<NonZeroU32>) -> Self {
        Self {
            mark,
            ..backend.into()
        }
    }

    pub(super) fn key(&self) -> ProbeKey {
        let Backend { address, transport } = self.backend;
        ProbeKey {
            ip: address.ip().to_canonical(),
            transport,
            port: (!self.any_port).then(|| address.port()),
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
            is_kept: false,
        }
    }
}
