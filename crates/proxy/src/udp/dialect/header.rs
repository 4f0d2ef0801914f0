//! The header of a datagram: what it says, and where the payload begins.

use std::net::SocketAddr;

use peername_proto::{Carrier, Invalid, Parsed, Spp, Transport, parse};
use peername_sys::netlink;

use crate::addr::{ClaimedSource, PeerAddr, canonical};
use crate::config::HeaderLimits;
use crate::permit::Claims;
use crate::udp::drop_reason::Dropped;

/// A datagram whose header has been read, or one that belongs to such a one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Framed {
    pub(crate) claim: Option<ClaimedSource>,
    /// Where the client sent it to, by the header.
    pub(crate) destination: Option<SocketAddr>,
    pub(crate) peer: PeerAddr,
    /// Octets of header in front of the payload.
    pub(crate) header_len: usize,
    /// What every reply begins with.
    pub(crate) spp: Option<Spp>,
}

impl Framed {
    /// Reads a PROXY v2 header. Version 1 has no UDP, and a header that speaks of TCP is about
    /// something else.
    pub(crate) fn proxy_v2(
        bytes: &[u8],
        peer: PeerAddr,
        limits: &HeaderLimits,
    ) -> Result<Self, Dropped> {
        let Parsed::Complete(header) = parse(bytes, Carrier::Datagram)? else {
            return Err(Invalid::Truncated {
                have: bytes.len(),
                need: bytes.len() + 1,
            }
            .into());
        };
        limits.admit(&header)?;
        if header.transport() == Some(Transport::Stream) {
            return Err(Dropped::StreamTransport);
        }
        Ok(Self {
            claim: header.source().map(ClaimedSource::canonical),
            destination: header.destination().map(canonical),
            peer,
            header_len: header.len,
            spp: None,
        })
    }

    /// Reads a Simple Proxy Protocol header.
    pub(crate) fn spp(bytes: &[u8], peer: PeerAddr) -> Result<Self, Dropped> {
        let header = Spp::parse(bytes)?;
        Ok(Self {
            claim: Some(ClaimedSource::canonical(header.client)),
            destination: Some(canonical(header.proxy)),
            peer,
            header_len: Spp::LEN,
            spp: Some(header),
        })
    }
}

impl Claims for Framed {
    fn claim(&self) -> Option<ClaimedSource> {
        self.claim
    }

    fn peer(&self) -> PeerAddr {
        self.peer
    }

    fn destination(&self) -> Option<SocketAddr> {
        self.destination
    }

    /// Nothing is sent on by which it could be told.
    fn hops(&self) -> u8 {
        0
    }

    fn transport(&self) -> netlink::Transport {
        netlink::Transport::Udp
    }
}
