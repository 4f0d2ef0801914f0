//! Addresses of a session as plain data: its key, and where its replies go.

use std::net::SocketAddr;

use peername_server::addr::PeerAddr;
use peername_sys::udp::PktInfo;
use serde::{Deserialize, Serialize};

/// Identifies a session: two datagrams with an equal key belong to the same one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize, Serialize)]
pub(crate) struct SessionKey {
    /// Index of the listener.
    pub(crate) listener: usize,
    /// The original destination, where a TPROXY rule redirected the datagram to the listener. Each port there counts as
    /// a listener of its own.
    pub(crate) original_destination: Option<SocketAddr>,
    /// The balancer. Its port is 0 where a header names the client and its port: a balancer may change its port.
    pub(crate) from: SocketAddr,
    /// The client, by the header.
    pub(crate) client: Option<SocketAddr>,
    /// The address that the client sent to, by the header: a reply from one of the balancer's addresses must not reach a
    /// client that sent to another.
    pub(crate) destination: Option<SocketAddr>,
}

/// A client and the address it sent to, through whichever balancer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ClientKey {
    listener: usize,
    original_destination: Option<SocketAddr>,
    client: SocketAddr,
    destination: Option<SocketAddr>,
}

impl ClientKey {
    /// `None` where no header names the client and its port.
    pub(crate) fn of(key: &SessionKey) -> Option<Self> {
        let client = key.client.filter(|client| client.port() != 0)?;
        Some(Self {
            listener: key.listener,
            original_destination: key.original_destination,
            client,
            destination: key.destination,
        })
    }
}

/// The addresses on the path of a datagram. Replies of its session take the same path back to the balancer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReplyTo {
    /// Index of the listener.
    pub(crate) listener: usize,
    /// The balancer.
    pub(crate) peer: PeerAddr,
    /// The local address it arrived at.
    pub(crate) local: Option<PktInfo>,
    /// The address it was sent to, where a TPROXY rule redirected it.
    pub(crate) original_destination: Option<SocketAddr>,
}
