//! What the decision about a connection or datagram uses of its header.

use std::net::SocketAddr;

use peername_server::access::clients::ClientRefusal;
use peername_server::addr::{ClaimedSource, PeerAddr};
use peername_sys::Transport;

/// A header that has been read: of a connection ([`ClaimedConn`](crate::conn::header::ClaimedConn)) or of a datagram.
pub(crate) trait HeaderClaims {
    /// The claimed source: the client, or `None` for a header without one (LOCAL, UNKNOWN).
    fn claim(&self) -> Option<ClaimedSource>;

    /// The real peer that sent the header.
    fn peer(&self) -> PeerAddr;

    /// Why the TLVs of the header refuse it (`--require-tlv`).
    fn tlv_refusal(&self) -> Option<ClientRefusal>;

    /// The destination that the client connected to; an IPv4-mapped address in its IPv4 form. `None` when the header
    /// names none. A header without a claimed source names no destination either.
    fn destination(&self) -> Option<SocketAddr>;

    /// The hop count: the proxies that the connection has passed, according to the header.
    fn hops(&self) -> u8;

    /// The transport protocol, which is the same on both sides.
    fn transport(&self) -> Transport;
}
