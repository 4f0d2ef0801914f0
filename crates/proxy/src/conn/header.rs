//! The second stage: the connection with its header read.

use peername_proto::Header;
use peername_relay::Prefix;
use peername_server::addr::{LocalAddr, PeerAddr};
use peername_server::pending_headers::PendingHeaders;
use peername_server::{header_reader, hop_count};
use peername_sys::Transport;
use tokio::net::TcpStream;

use crate::config::Config;
use crate::conn::accept::{AcceptedConn, refuse};
use crate::conn::outbound_header;
use crate::outcome::Failure;
use crate::policy::claims::{Claims, HeaderFacts};
use crate::telemetry::record::line::{LoggedTlvs, render_tlvs};

/// A connection of a trusted peer that began with a valid header.
#[derive(Debug)]
pub struct ClaimedConn {
    pub(crate) stream: TcpStream,
    pub(crate) claims: Claims,
    /// The address listened on.
    pub local: LocalAddr,
    /// The header for the backend, where it wants one.
    pub(crate) outbound_header: Option<Box<[u8]>>,
    /// The client's first bytes, as far as they came with the header.
    pub(crate) prefix: Prefix,
    /// The TLVs to log (`--log-tlv`).
    pub(crate) tlvs: Option<Box<LoggedTlvs>>,
}

impl ClaimedConn {
    /// Reads the header until its deadline, in however many pieces it arrives. Until then the connection counts as `pending`.
    ///
    /// # Errors
    ///
    /// [`Failure::Header`]: no complete and valid header of an allowed size arrived in time.
    /// [`Failure::OutboundHeader`]: the header for the backend can't be written. The connection is reset.
    pub(crate) async fn read(
        accepted: AcceptedConn,
        config: &Config,
        pending: &PendingHeaders,
    ) -> Result<Self, Failure> {
        let AcceptedConn {
            stream,
            peer,
            local,
        } = accepted;
        let retain = |header: &Header<'_>| Retained::from_header(header, peer, config);
        let header = header_reader::read(&stream, peer.ip(), &config.header, pending, retain).await;
        match header {
            Ok((retained, prefix)) => Ok(Self {
                stream,
                claims: retained.claims,
                local,
                prefix,
                outbound_header: retained.outbound_header,
                tlvs: retained.tlvs,
            }),
            Err(failure) => Err(refuse(&stream, failure)),
        }
    }

    /// Drops a claim that the policy does not use, and replaces the header for the backend by one without a client.
    pub(crate) fn clear_claim(&mut self, config: &Config) {
        if self.claims.facts.claim.take().is_some() {
            self.outbound_header = config
                .upstream
                .send_proxy
                .map(outbound_header::local_header);
        }
    }
}

/// The parts of a header that outlive its bytes.
struct Retained {
    claims: Claims,
    outbound_header: Option<Box<[u8]>>,
    tlvs: Option<Box<LoggedTlvs>>,
}

impl Retained {
    fn from_header(header: &Header<'_>, peer: PeerAddr, config: &Config) -> Result<Self, Failure> {
        let hops = config
            .destination_policy
            .as_ref()
            .map(|_| hop_count::read(header));
        let outbound_header = config
            .upstream
            .send_proxy
            .map(|version| outbound_header::write(header, version, hops))
            .transpose()
            .map_err(Failure::OutboundHeader)?;
        Ok(Self {
            claims: Claims {
                facts: HeaderFacts::from_header(header),
                peer,
                hops: hops.unwrap_or(0),
                tlv_refusal: config.clients.judge_tlvs(header).err(),
                transport: Transport::Tcp,
            },
            outbound_header,
            tlvs: render_tlvs(header, &config.log_tlvs),
        })
    }
}
