//! A listener of `--admin` of the previous process.

use std::os::fd::OwnedFd;

use peername_observe::admin::{AdminAddr, AdminListener};

/// The socket and its address.
#[derive(Debug)]
pub(crate) struct PreviousAdmin {
    addr: AdminAddr,
    socket: OwnedFd,
}

impl PreviousAdmin {
    /// `None` for an address that can't be parsed.
    pub(crate) fn new(addr: &str, socket: OwnedFd) -> Option<Self> {
        let addr = addr.parse().ok()?;
        Some(Self { addr, socket })
    }

    /// Whether it is on this address.
    pub(crate) fn is_on(&self, wanted: &AdminAddr) -> bool {
        self.addr == *wanted
    }
}

impl From<PreviousAdmin> for AdminListener {
    fn from(previous: PreviousAdmin) -> Self {
        Self::adopt(previous.addr, previous.socket)
    }
}
