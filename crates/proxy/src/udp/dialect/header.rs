//! The header of a datagram: what it claims, and where the payload begins.

use peername_proto::{
    Carrier, Header, Invalid, Parsed, Spp, Transport, begins_like_v1, guess_protocol, parse,
};

use crate::outcome::Failure;
use crate::policy::claims::{Claims, HeaderFacts};
use crate::policy::rules::Rules;
use crate::udp::drop_reason::DropReason;
use peername_server::access::clients::HeaderClient;
use peername_server::addr::PeerAddr;
use peername_server::header_error::HeaderError;

/// The parsed header of a datagram, or that of its flow if the datagram has none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DatagramHeader {
    pub(crate) claims: Claims,
    /// Length of the header in front of the payload; 0 where the datagram has none.
    pub(crate) len: usize,
    /// The Simple Proxy Protocol header, with which every reply begins.
    pub(crate) spp: Option<Spp>,
}

impl DatagramHeader {
    /// Parses a PROXY v2 header.
    ///
    /// # Errors
    ///
    /// [`DropReason::Refused`] where the header is not a valid one of version 2, exceeds the limits, or lacks a required TLV;
    /// [`DropReason::StreamTransport`] where it is that of a TCP connection.
    pub(crate) fn parse_proxy_v2(
        bytes: &[u8],
        peer: PeerAddr,
        rules: &Rules,
    ) -> Result<Self, DropReason> {
        let header = parse_whole(bytes, Carrier::Datagram).map_err(Failure::from)?;
        rules.config.header.admit(&header).map_err(Failure::from)?;
        if header.transport() == Some(Transport::Stream) {
            return Err(DropReason::StreamTransport);
        }
        Self::judge(&header, peer, rules)
    }

    /// Parses the header of a flow: version 2, or version 1, which nginx sends over UDP. Version 1 has no name for UDP, so such
    /// a header names TCP.
    ///
    /// # Errors
    ///
    /// As [`DatagramHeader::parse_proxy_v2`], which also refuses version 1 with `--strict-header`.
    pub(crate) fn parse_flow_header(
        bytes: &[u8],
        peer: PeerAddr,
        rules: &Rules,
    ) -> Result<Self, DropReason> {
        let limits = &rules.config.header;
        if !begins_like_v1(bytes) || limits.policy.strict {
            return Self::parse_proxy_v2(bytes, peer, rules);
        }
        let header = parse_whole(bytes, Carrier::Stream).map_err(Failure::from)?;
        limits.admit(&header).map_err(Failure::from)?;
        Self::judge(&header, peer, rules)
    }

    /// The claims of a valid header, unless a client's lacks a required TLV.
    fn judge(header: &Header<'_>, peer: PeerAddr, rules: &Rules) -> Result<Self, DropReason> {
        let config = &rules.config;
        let facts = HeaderFacts::from_header(header);
        // Each datagram has TLVs of its own. Without required TLVs, the client is judged once per session (`Permit::decide`).
        if config.clients.requires_tlvs() {
            let tlvs = config.clients.judge_tlvs(header);
            let client = HeaderClient {
                claim: facts.claim,
                peer,
                tlvs,
            };
            rules.admit_client(client).map_err(Failure::from)?;
        }
        Ok(Self {
            claims: Claims::from_datagram(facts, peer),
            len: header.len,
            spp: None,
        })
    }

    /// Parses a Simple Proxy Protocol header, with which the datagram must begin.
    pub(crate) fn parse_spp(bytes: &[u8], peer: PeerAddr) -> Result<Self, DropReason> {
        let header = Spp::parse(bytes)?;
        Ok(Self {
            claims: Claims::from_datagram(HeaderFacts::from_spp(&header), peer),
            len: Spp::LEN,
            spp: Some(header),
        })
    }

    /// The header of replies: with the Simple Proxy Protocol a copy of the request's, otherwise empty.
    pub(crate) fn reply_header(&self) -> Box<[u8]> {
        self.spp
            .map(|spp| spp.to_bytes().into())
            .unwrap_or_default()
    }
}

/// Parses a header that must be complete. Without a header, the error has a guess at the protocol of the datagram.
fn parse_whole(bytes: &[u8], carrier: Carrier) -> Result<Header<'_>, HeaderError> {
    let invalid = match parse(bytes, carrier) {
        Ok(Parsed::Complete(header)) => return Ok(header),
        Ok(Parsed::NeedMore(need)) => Invalid::Truncated {
            have: bytes.len(),
            need,
        },
        Err(invalid) => invalid,
    };
    let guess = match invalid {
        Invalid::NoHeader { .. } => guess_protocol(bytes),
        _ => None,
    };
    Err(HeaderError::Invalid { invalid, guess })
}
