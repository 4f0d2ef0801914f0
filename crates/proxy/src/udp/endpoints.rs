//! What tells sessions apart, and where their replies go.

use std::net::SocketAddr;

use peername_sys::udp::PktInfo;

use peername_server::addr::PeerAddr;

/// What tells one session from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SessionKey {
    /// Number of the listen address.
    pub(crate) listener: usize,
    /// Where it was sent to before a TPROXY rule brought it to the listener: another port there is as
    /// another listener.
    pub(crate) original: Option<SocketAddr>,
    /// The balancer. Its port is 0 where a header names the client: a balancer may change its port.
    pub(crate) from: SocketAddr,
    /// The client, as the header has it.
    pub(crate) client: Option<SocketAddr>,
    /// Where the client sent to, as the header has it: replies from one address of the balancer's
    /// must not come to a client that asked another.
    pub(crate) destination: Option<SocketAddr>,
}

/// How to reach the balancer: the way its last datagram came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReplyTo {
    /// Number of the listen address.
    pub(crate) listener: usize,
    pub(crate) peer: PeerAddr,
    /// The address of ours it was sent to.
    pub(crate) local: Option<PktInfo>,
    /// Where it was sent to before a TPROXY rule brought it here.
    pub(crate) original: Option<SocketAddr>,
}
