//! Why rules and routes could not be made.

use std::io;
use std::net::SocketAddr;

use peername_sys::SyscallError;

use super::table_slot::RUNNING_SLOTS;

/// Making, keeping or removing rules and routes failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The backend's packets are routed by another host.
    #[error(
        "the backend {0} is not on this host, so nothing can be set up here: its own host must \
         route replies to clients back to this one; if it does, give `peername routes add` the \
         `--mark` of the proxy (docs/routes.md, \"A backend on another host\")"
    )]
    OtherHost(SocketAddr),
    /// This process may not.
    #[error("{0}: changing rules and routes needs CAP_NET_ADMIN")]
    Permission(SyscallError),
    /// Every backend named is IPv6 and this host has none.
    #[error(
        "this host has no IPv6 (net.ipv6.conf.all.disable_ipv6), and no IPv4 backend was named"
    )]
    NoIpv6,
    /// No slot is free.
    #[error(
        "all {RUNNING_SLOTS} places for running proxies are taken; `peername routes show` lists them"
    )]
    NoFreeSlot,
    /// nft(8) can't be run.
    #[error("TPROXY ports and marks need nft(8): install nftables")]
    NoNft,
    /// nft(8) may not.
    #[error(
        "tables of the packet filter can be seen and made with CAP_NET_ADMIN only, which nft(8) has when \
         root runs it, but not by file capabilities of this binary"
    )]
    NftPermission,
    /// nft(8) refused.
    #[error("nft: {0}")]
    Nft(String),
    /// The kernel refused for another reason.
    #[error(transparent)]
    Failed(SyscallError),
    /// The keeper could not be started or spoken to.
    #[error("starting the keeper of the routes: {0}")]
    Start(io::Error),
    /// The keeper said why it gave up.
    #[error("{0}")]
    Keeper(String),
}

impl From<SyscallError> for Error {
    fn from(error: SyscallError) -> Self {
        if error.is_permission() {
            Self::Permission(error)
        } else {
            Self::Failed(error)
        }
    }
}
