//! The claims of a header, on which the decision about a connection or datagram is based.

use std::net::SocketAddr;

use peername_server::access::clients::ClientRefusal;
use peername_server::addr::{ClaimedSource, PeerAddr};
use peername_sys::Transport;

/// The claims of a header that has been read: of a connection ([`ClaimedConn`](crate::conn::header::ClaimedConn)) or of a
/// datagram.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claims {
    /// The claimed source: the client, or `None` for a header without one (LOCAL, UNKNOWN).
    pub(crate) claim: Option<ClaimedSource>,
    /// The real peer that sent the header.
    pub(crate) peer: PeerAddr,
    /// The destination that the client connected to; an IPv4-mapped address in its IPv4 form. `None` when the header
    /// names none. A header without a claimed source names no destination either.
    pub(crate) destination: Option<SocketAddr>,
    /// The hop count: the proxies that the connection has passed, according to the header.
    pub(crate) hops: u8,
    /// The refusal for the header's TLVs, if they are not the required ones (`--require-tlv`).
    pub(crate) tlv_refusal: Option<ClientRefusal>,
    /// The transport protocol, which is the same on both sides.
    pub(crate) transport: Transport,
}

impl Claims {
    /// The claims of a datagram's header.
    pub(crate) fn from_datagram(
        claim: Option<ClaimedSource>,
        peer: PeerAddr,
        destination: Option<SocketAddr>,
    ) -> Self {
        Self {
            claim,
            peer,
            destination,
            // The proxy sends datagrams without a header, so nothing could count their hops.
            hops: 0,
            // A datagram without the required TLVs has been dropped.
            tlv_refusal: None,
            transport: Transport::Udp,
        }
    }
}
