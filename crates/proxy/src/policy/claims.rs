//! What the decision about a connection or datagram uses of its header.

use std::net::SocketAddr;

use peername_server::addr::{ClaimedSource, PeerAddr};
use peername_sys::netlink::Transport;

/// A header that has been read: of a connection ([`ClaimedConn`](crate::conn::header::ClaimedConn)) or of a datagram.
pub(crate) trait HeaderClaims {
    /// The claimed source: the client, or `None` for a header without one (LOCAL, UNKNOWN).
    fn claim(&self) -> Option<ClaimedSource>;

    /// The real peer that sent the header.
    fn peer(&self) -> PeerAddr;

    /// The destination that the client connected to, an IPv4-mapped address in its IPv4 form; `None` when the header
    /// names none, as is always so without a claimed source.
    fn destination(&self) -> Option<SocketAddr>;

    /// The hop count: how many proxies it has passed, as far as the header tells.
    fn hops(&self) -> u8;

    /// The protocol it arrived by, and the backend is reached with.
    fn transport(&self) -> Transport;
}
