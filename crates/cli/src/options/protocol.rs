//! The transports of an option `--protocol`.

use std::net::SocketAddr;

use peername_proxy::routes::Backend;
use peername_sys::Transport;

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Protocol {
    Tcp,
    Udp,
    Both,
}

impl Protocol {
    pub(crate) fn transports(self) -> &'static [Transport] {
        match self {
            Self::Tcp => &[Transport::Tcp],
            Self::Udp => &[Transport::Udp],
            Self::Both => &[Transport::Tcp, Transport::Udp],
        }
    }

    pub(crate) fn has_tcp(self) -> bool {
        matches!(self, Self::Tcp | Self::Both)
    }

    pub(crate) fn has_udp(self) -> bool {
        matches!(self, Self::Udp | Self::Both)
    }

    /// The addresses to listen on for TCP: all or none.
    pub(crate) fn tcp(self, listen: &[SocketAddr]) -> &[SocketAddr] {
        if self.has_tcp() { listen } else { &[] }
    }

    /// The addresses to listen on for UDP: all or none.
    pub(crate) fn udp(self, listen: &[SocketAddr]) -> &[SocketAddr] {
        if self.has_udp() { listen } else { &[] }
    }

    /// A backend for each address and protocol.
    pub(crate) fn backends(self, addresses: &[SocketAddr]) -> Vec<Backend> {
        self.transports()
            .iter()
            .flat_map(|&transport| {
                addresses
                    .iter()
                    .map(move |&address| Backend { address, transport })
            })
            .collect()
    }
}
