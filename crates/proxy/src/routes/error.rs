//! Errors of installing, listing and removing rules and routes.

use std::io;
use std::net::SocketAddr;

use peername_sys::SyscallError;
use peername_sys::process::user;

use super::table_slot::RUNNING_SLOTS;

/// Installing, listing or removing rules and routes failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The backend is on another host, which routes its packets.
    #[error(
        "the backend {0} is not on this host, so nothing can be set up here: its own host must \
         route replies to clients back to this one; if it does, give `peername routes add` the \
         `--mark` of the proxy (docs/routes.md, \"A backend on another host\")"
    )]
    OtherHost(SocketAddr),
    /// This process lacks CAP_NET_ADMIN.
    #[error("{0}: changing rules and routes needs CAP_NET_ADMIN")]
    Permission(SyscallError),
    /// Every backend named is IPv6, and this host has no IPv6.
    #[error(
        "this host has no IPv6 (net.ipv6.conf.all.disable_ipv6), and no IPv4 backend was named"
    )]
    NoIpv6,
    /// Every slot for running proxies is locked.
    #[error(
        "all {RUNNING_SLOTS} slots for running proxies are in use; `peername routes show` lists them"
    )]
    NoFreeSlot,
    /// nft(8) is not installed.
    #[error("nft(8) is missing: install nftables")]
    NoNft,
    /// nft(8) lacks CAP_NET_ADMIN.
    #[error(
        "packet filter tables can be listed and changed with CAP_NET_ADMIN only, which nft(8) has when \
         root runs it, but not by file capabilities of this binary"
    )]
    NftPermission,
    /// nft(8) failed; its standard error.
    #[error("nft: {0}")]
    Nft(String),
    /// A system call failed for another reason.
    #[error(transparent)]
    Syscall(SyscallError),
    /// The keeper can't be started, or the pipe to it fails.
    #[error("starting the keeper of the routes: {0}")]
    Start(io::Error),
    /// The keeper failed; the reason that it reports.
    #[error("{0}")]
    Keeper(String),
}

/// The remedy for a missing privilege, for error texts: `for_users`, and in a container what grants the capability.
pub fn permission_advice(for_users: &str) -> String {
    let granted = "start the container with `--cap-add NET_ADMIN`, or add CAP_NET_ADMIN to CapabilityBoundingSet= of the unit";
    if user::is_root() {
        format!("root lacks it here: {granted}")
    } else {
        format!("{for_users}; where root lacks it, too, {granted}")
    }
}

impl From<SyscallError> for Error {
    fn from(error: SyscallError) -> Self {
        if error.is_permission() {
            Self::Permission(error)
        } else {
            Self::Syscall(error)
        }
    }
}
