//! Addresses of a session as plain data: the sender of a request, the key of the session, and the path of its replies.

use std::net::{IpAddr, SocketAddr};

use peername_server::addr::{ClaimedSource, PeerAddr};
use peername_sys::udp::PktInfo;
use serde::{Deserialize, Serialize};

/// The sender of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DatagramOrigin {
    pub(crate) peer: PeerAddr,
    /// The client that the request's header names, if that was read.
    pub(crate) client: Option<ClaimedSource>,
}

/// Identifies a session: datagrams with equal keys belong to the same session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize, Serialize)]
pub(crate) struct SessionKey {
    /// Index of the listener.
    pub(crate) listener: usize,
    /// The original destination, where a TPROXY rule redirected the datagram to the listener. Each original destination counts
    /// as a listener of its own.
    pub(crate) original_destination: Option<SocketAddr>,
    /// The local address that the balancer sent to, where each address counts as a listener of its own: on a transparent
    /// listener, and where the sender's port tells clients apart.
    pub(crate) local: Option<IpAddr>,
    /// The balancer. The port is 0 where a header names the client and its port, because a balancer may change its own port.
    pub(crate) from: SocketAddr,
    /// The client that the header names.
    pub(crate) client: Option<SocketAddr>,
    /// The destination that the header names: a reply from one of the balancer's addresses must not reach a client that sent to
    /// another.
    pub(crate) destination: Option<SocketAddr>,
}

/// Identifies a client and the address that it sent to, regardless of the balancer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ClientKey {
    listener: usize,
    original_destination: Option<SocketAddr>,
    local: Option<IpAddr>,
    client: SocketAddr,
    destination: Option<SocketAddr>,
}

impl ClientKey {
    /// The client of a session. `None` where no header names the client and its port.
    pub(crate) fn from_session(key: &SessionKey) -> Option<Self> {
        let client = key.client.filter(|client| client.port() != 0)?;
        Some(Self {
            listener: key.listener,
            original_destination: key.original_destination,
            local: key.local,
            client,
            destination: key.destination,
        })
    }
}

/// Identifies a flow, to which datagrams without a header belong. A balancer may send to several addresses of this host from one
/// socket; each is a flow of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize, Serialize)]
pub(crate) struct FlowKey {
    /// Index of the listener.
    pub(crate) listener: usize,
    /// The original destination, where a TPROXY rule redirected the datagram to the listener.
    original_destination: Option<SocketAddr>,
    /// The local address that the balancer sent to.
    local: Option<IpAddr>,
    /// The balancer's address and port.
    pub(crate) balancer: SocketAddr,
}

impl FlowKey {
    /// The flow of a request that came by this path.
    pub(crate) fn from_request(reply_to: &ReplyTo) -> Self {
        Self {
            listener: reply_to.listener,
            original_destination: reply_to.original_destination,
            local: reply_to.local_ip(),
            balancer: reply_to.peer.0,
        }
    }
}

/// The addresses on the path of a request. Replies of its session take the same path back to the balancer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) struct ReplyTo {
    /// Index of the listener.
    pub(crate) listener: usize,
    /// The balancer.
    pub(crate) peer: PeerAddr,
    /// The local address that the request arrived at.
    #[serde(with = "local")]
    pub(crate) local: Option<PktInfo>,
    /// The address that the request was sent to, where a TPROXY rule redirected it from another port than the listener's.
    pub(crate) original_destination: Option<SocketAddr>,
    /// Whether the listener receives what TPROXY rules redirect.
    pub(crate) is_transparent: bool,
}

impl ReplyTo {
    /// The local address that the request arrived at.
    pub(crate) fn local_ip(&self) -> Option<IpAddr> {
        self.local.map(|local| local.ip)
    }
}

/// The local address of a request as it is handed over: the address and the interface.
mod local {
    use std::net::IpAddr;

    use peername_sys::udp::PktInfo;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(
        local: &Option<PktInfo>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        local
            .map(|local| (local.ip, local.interface))
            .serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<PktInfo>, D::Error> {
        let local = Option::<(IpAddr, u32)>::deserialize(deserializer)?;
        Ok(local.map(|(ip, interface)| PktInfo { ip, interface }))
    }
}
