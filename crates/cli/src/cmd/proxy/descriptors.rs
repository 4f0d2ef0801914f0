//! Descriptors are what a flood takes first, so they are shared out before anything is served.

use peername_sys::limits::raise_open_files;

use super::Protocol;

/// How many of what may be open at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Descriptors {
    /// TCP connections, of two descriptors each.
    pub(crate) connections: usize,
    /// UDP sessions, of one each.
    pub(crate) sessions: usize,
}

impl Descriptors {
    /// Raises the limit and gives each protocol its share: all or half.
    pub(crate) fn share_out(protocol: Protocol) -> anyhow::Result<Self> {
        let files = raise_open_files()?;
        // Listeners, epoll, log and the relay's first pipes need some.
        let free = files - RESERVED.min(files / 4);
        let (tcp, udp) = match protocol {
            Protocol::Tcp => (free, 0),
            Protocol::Udp => (0, free),
            Protocol::Both => (free / 2, free / 2),
        };
        Ok(Self {
            connections: usize::try_from(tcp / 2)?,
            sessions: usize::try_from(udp)?,
        })
    }
}

const RESERVED: u64 = 64;
