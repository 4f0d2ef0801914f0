//! The policy on clients (`--allow-client`, `--deny-client`, `--require-tlv`): bans, and conditions on the header.
//!
//! The trust list decides by the real peer whether it may send headers. This policy decides by the client that a header claims,
//! once per connection or session, before the backend is reached. Lists change while the process runs
//! ([`ClientAccess::reread`]).

mod lists;
mod refusal;
mod required_tlvs;

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use arc_swap::ArcSwap;
use peername_proto::Header;

use super::network_set::NetworkListError;
use crate::addr::{ClaimedSource, PeerAddr, canonical};
pub use lists::{ClientLists, ListOptions};
pub use refusal::ClientRefusal;
pub use required_tlvs::{ParseRequiredTlvError, RequiredTlv, RequiredTlvs};

/// The policy on the clients of some listeners. Its lists can be replaced at any time.
#[derive(Debug, Default)]
pub struct ClientAccess {
    options: ListOptions,
    lists: ArcSwap<ClientLists>,
    required_tlvs: RequiredTlvs,
}

/// The client of a header, and whether the header has the required TLVs.
#[derive(Clone, Copy, Debug)]
pub struct HeaderClient {
    /// The claimed source; `None` for LOCAL and UNKNOWN.
    pub claim: Option<ClaimedSource>,
    /// The peer that sent the header.
    pub peer: PeerAddr,
    /// The result of [`ClientAccess::judge_tlvs`].
    pub tlvs: Result<(), ClientRefusal>,
}

impl HeaderClient {
    /// The client of a header whose TLVs were checked when it was read.
    pub fn of_read_header(claim: Option<ClaimedSource>, peer: PeerAddr) -> Self {
        let tlvs = Ok(());
        Self { claim, peer, tlvs }
    }

    /// The address that the lists are applied to: the client's, or the peer's if there is no client.
    pub fn address(self) -> IpAddr {
        match self.claim {
            Some(claim) => claim.0.ip().to_canonical(),
            None => self.peer.ip(),
        }
    }

    fn names_peer(self) -> bool {
        self.claim
            .is_some_and(|claim| claim.0 == canonical(self.peer.0))
    }
}

impl ClientAccess {
    /// Creates the policy from the values of the options. Reads the files that they name.
    pub fn new(
        options: ListOptions,
        required_tlvs: RequiredTlvs,
    ) -> Result<Self, NetworkListError> {
        let lists = ClientLists::read(&options)?;
        Ok(Self {
            options,
            lists: ArcSwap::from_pointee(lists),
            required_tlvs,
        })
    }

    /// Decides by a header. The deny list applies to the client, or to the peer if the header has no client.
    ///
    /// The allow list and required TLVs do not apply to the balancer's own connections, such as health checks. Their headers
    /// have no client or, as version 1 has no LOCAL, name the peer's own address and port. A transparent balancer, which
    /// connects from its clients' addresses, sends such a header for a client, too. So the peer must be on the list of
    /// `--health-checks-from`, or have an address of this host (`is_own`) if there is no such list.
    pub fn admit(
        &self,
        header: HeaderClient,
        is_own: impl Fn(IpAddr) -> bool,
    ) -> Result<(), ClientRefusal> {
        let lists = self.lists.load();
        let client = header.address();
        lists.check_denied(client)?;
        let is_balancer_connection = header.claim.is_none()
            || header.names_peer() && lists.is_health_checker(client, is_own);
        if is_balancer_connection {
            return Ok(());
        }
        lists.check_allowed(client)?;
        header.tlvs
    }

    /// Decides by the address of a client that connects directly, without a header.
    pub fn judge(&self, client: IpAddr) -> Result<(), ClientRefusal> {
        let lists = self.lists.load();
        lists.check_denied(client)?;
        lists.check_allowed(client)
    }

    /// Refuses an address of the deny list.
    pub fn check_denied(&self, address: IpAddr) -> Result<(), ClientRefusal> {
        self.lists.load().check_denied(address)
    }

    /// Decides by the TLVs of a header. A header without a client (LOCAL, UNKNOWN) is the balancer's own and needs none.
    pub fn judge_tlvs(&self, header: &Header<'_>) -> Result<(), ClientRefusal> {
        self.required_tlvs.check(header)
    }

    /// Whether headers must have a TLV.
    pub fn requires_tlvs(&self) -> bool {
        !self.required_tlvs.is_empty()
    }

    /// Whether there are lists.
    pub fn has_lists(&self) -> bool {
        self.options.values().next().is_some()
    }

    /// The files of the lists.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        self.options
            .values()
            .filter_map(|value| value.strip_prefix('@').map(Path::new))
    }

    /// The lists in force.
    pub fn lists(&self) -> Arc<ClientLists> {
        self.lists.load_full()
    }

    /// Reads the files again, and puts their lists into force as a whole. After an error, the lists stay as they were.
    pub fn reread(&self) -> Result<(), NetworkListError> {
        let lists = ClientLists::read(&self.options)?;
        self.lists.store(Arc::new(lists));
        Ok(())
    }
}

impl ListOptions {
    fn values(&self) -> impl Iterator<Item = &String> {
        [&self.allow, &self.deny, &self.health_checks]
            .into_iter()
            .flatten()
    }
}
