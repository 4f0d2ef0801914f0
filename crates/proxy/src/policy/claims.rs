//! The claims of a header, on which the decision about a connection or datagram is based.

use std::net::SocketAddr;

use peername_proto::{Header, Spp};
use peername_server::access::clients::ClientRefusal;
use peername_server::addr::{ClaimedSource, PeerAddr, canonical};
use peername_sys::Transport;
use serde::{Deserialize, Serialize};

/// The claims of a header that has been read: of a connection ([`ClaimedConn`](crate::conn::header::ClaimedConn)) or of a
/// datagram.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claims {
    /// The facts that the log line and a new process need, too.
    pub(crate) facts: HeaderFacts,
    /// The real peer that sent the header.
    pub(crate) peer: PeerAddr,
    /// The hop count: the proxies that the connection has passed, according to the header.
    pub(crate) hops: u8,
    /// The refusal for the header's TLVs, if they are not the required ones (`--require-tlv`).
    pub(crate) tlv_refusal: Option<ClientRefusal>,
    /// The transport protocol, which is the same on both sides.
    pub(crate) transport: Transport,
}

/// The facts of a header that are kept as long as its connection, session or flow: for the log line, and for a new process that
/// continues the session or flow.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub(crate) struct HeaderFacts {
    /// The claimed source: the client, or `None` for a header without one (LOCAL, UNKNOWN).
    pub(crate) claim: Option<ClaimedSource>,
    /// The destination that the client connected to; an IPv4-mapped address in its IPv4 form. `None` when the header
    /// names none. A header without a claimed source names no destination either.
    pub(crate) destination: Option<SocketAddr>,
}

impl HeaderFacts {
    pub(crate) fn from_header(header: &Header<'_>) -> Self {
        Self {
            claim: header.source().map(ClaimedSource::canonical),
            destination: header.destination().map(canonical),
        }
    }

    pub(crate) fn from_spp(header: &Spp) -> Self {
        Self {
            claim: Some(ClaimedSource::canonical(header.client)),
            destination: Some(canonical(header.proxy)),
        }
    }
}

impl Claims {
    /// The claims of a datagram's header.
    pub(crate) fn from_datagram(facts: HeaderFacts, peer: PeerAddr) -> Self {
        Self {
            facts,
            peer,
            // The proxy sends datagrams without a header, so nothing could count their hops.
            hops: 0,
            // A datagram without the required TLVs has been dropped.
            tlv_refusal: None,
            transport: Transport::Udp,
        }
    }
}
