//! Which clients may connect (`--allow-client`, `--deny-client`, `--require-tlv`): bans, and conditions on the header.
//!
//! The trust list decides by the real peer which balancers may send headers. This decides by what they claim, once per
//! connection or session, before the backend is reached. Lists change while the process runs ([`ClientAccess::reread`]).

mod lists;
mod required_tlvs;

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use arc_swap::ArcSwap;
use ipnet::IpNet;
use peername_proto::Header;

use super::network_list::NetworkListError;
use crate::addr::{ClaimedSource, PeerAddr, canonical};
pub use lists::ClientLists;
pub use required_tlvs::{ParseRequiredTlvError, RequiredTlv, RequiredTlvs};

/// The policy on the clients of some listeners. Its lists can be replaced while connections are judged by them.
#[derive(Debug, Default)]
pub struct ClientAccess {
    allow: Vec<String>,
    deny: Vec<String>,
    lists: ArcSwap<ClientLists>,
    required_tlvs: RequiredTlvs,
}

/// Why a client is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClientRefusal {
    /// It is on the deny list.
    #[error("the client is on the list of --deny-client, by its entry {by}")]
    Denied {
        /// The longest prefix of the list that covers it.
        by: IpNet,
    },
    /// There is an allow list, and the client is not on it.
    #[error("the client is not on the list of --allow-client")]
    NotAllowed,
    /// The header lacks a required TLV.
    #[error("the header has no TLV {kind:#04x}, which --require-tlv requires")]
    TlvMissing {
        /// The type of the TLV.
        kind: u8,
    },
    /// A required TLV has another value.
    #[error("the header's TLV {kind:#04x} has none of the values that --require-tlv lists")]
    TlvMismatch {
        /// The type of the TLV.
        kind: u8,
    },
}

impl ClientRefusal {
    /// The stable reason code for metrics and logs.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Denied { .. } => "client_denied",
            Self::NotAllowed => "client_not_allowed",
            Self::TlvMissing { .. } => "tlv_missing",
            Self::TlvMismatch { .. } => "tlv_mismatch",
        }
    }
}

impl ClientAccess {
    /// The policy by the values of the options. Reads the files that they name.
    ///
    /// # Errors
    ///
    /// As [`ClientLists::read`].
    pub fn new(
        allow: Vec<String>,
        deny: Vec<String>,
        required_tlvs: RequiredTlvs,
    ) -> Result<Self, NetworkListError> {
        let lists = ClientLists::read(&allow, &deny)?;
        Ok(Self {
            allow,
            deny,
            lists: ArcSwap::from_pointee(lists),
            required_tlvs,
        })
    }

    /// Decides by a header: by its claim, and by the result of [`ClientAccess::judge_tlvs`]. The balancer's own connections,
    /// such as health checks, are subject to the trust list alone.
    ///
    /// # Errors
    ///
    /// [`ClientRefusal`].
    pub fn admit(
        &self,
        claim: Option<ClaimedSource>,
        peer: PeerAddr,
        tlvs: Result<(), ClientRefusal>,
    ) -> Result<(), ClientRefusal> {
        Self::admit_tlvs(claim, peer, tlvs)?;
        self.judge_claim(claim, peer)
    }

    /// Decides by the result of [`ClientAccess::judge_tlvs`]: the balancer's own connection needs no TLV.
    ///
    /// # Errors
    ///
    /// That of `tlvs`.
    pub fn admit_tlvs(
        claim: Option<ClaimedSource>,
        peer: PeerAddr,
        tlvs: Result<(), ClientRefusal>,
    ) -> Result<(), ClientRefusal> {
        let is_own = claim.is_some() && judged_client(claim, peer).is_none();
        if is_own { Ok(()) } else { tlvs }
    }

    /// Decides by a header's claim alone. The lists may have changed since a connection or session began.
    ///
    /// # Errors
    ///
    /// As [`ClientAccess::judge`].
    pub fn judge_claim(
        &self,
        claim: Option<ClaimedSource>,
        peer: PeerAddr,
    ) -> Result<(), ClientRefusal> {
        judged_client(claim, peer).map_or(Ok(()), |client| self.judge(client.0.ip()))
    }

    /// Decides by the client's address.
    ///
    /// # Errors
    ///
    /// [`ClientRefusal::Denied`], [`ClientRefusal::NotAllowed`].
    pub fn judge(&self, client: IpAddr) -> Result<(), ClientRefusal> {
        self.lists.load().judge(client)
    }

    /// Decides by the TLVs of a header. A header without a client (LOCAL, UNKNOWN) is the balancer's own and needs none.
    ///
    /// # Errors
    ///
    /// [`ClientRefusal::TlvMissing`], [`ClientRefusal::TlvMismatch`].
    pub fn judge_tlvs(&self, header: &Header<'_>) -> Result<(), ClientRefusal> {
        self.required_tlvs.judge(header)
    }

    /// Whether headers must have a TLV.
    pub fn requires_tlvs(&self) -> bool {
        !self.required_tlvs.is_empty()
    }

    /// Whether there are lists.
    pub fn has_lists(&self) -> bool {
        !self.allow.is_empty() || !self.deny.is_empty()
    }

    /// The files of the lists.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        let values = self.allow.iter().chain(&self.deny);
        values.filter_map(|value| value.strip_prefix('@').map(Path::new))
    }

    /// The lists in force.
    pub fn lists(&self) -> Arc<ClientLists> {
        self.lists.load_full()
    }

    /// Reads the files again, and puts their lists into force as a whole.
    ///
    /// # Errors
    ///
    /// As [`ClientLists::read`]; the lists stay as they were.
    pub fn reread(&self) -> Result<(), NetworkListError> {
        let lists = ClientLists::read(&self.allow, &self.deny)?;
        self.lists.store(Arc::new(lists));
        Ok(())
    }
}

/// The client that the lists are applied to. `None` where the balancer speaks for itself: it claims no source, or that of its
/// own connection, as its health checks do with version 1, which has no LOCAL.
pub fn judged_client(claim: Option<ClaimedSource>, peer: PeerAddr) -> Option<ClaimedSource> {
    claim.filter(|claim| canonical(peer.0) != claim.0)
}
