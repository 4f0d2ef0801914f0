//! The listener of `--admin` of the previous process.

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
    pub(super) fn new(addr: &str, socket: OwnedFd) -> Option<Self> {
        let addr = addr.parse().ok()?;
        Some(Self { addr, socket })
    }

    /// The listener, where it is on the wanted address.
    pub(crate) fn adopt(self, wanted: &AdminAddr) -> Option<AdminListener> {
        (self.addr == *wanted).then(|| AdminListener::adopt(self.addr, self.socket))
    }
}
