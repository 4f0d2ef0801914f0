//! Drops the capabilities that connections don't need, and tries the others before the first connection is served.

use std::net::SocketAddr;
use std::num::NonZeroU32;

use anyhow::Context;
use peername_server::capabilities::Advice;
use peername_sys::process::caps::{CapabilitySet, is_effective, keep_only, set_effective};
use peername_sys::socket::upstream::UpstreamSocket;

/// Keeps the smallest set of capabilities that suffices for connections, and drops the others. CAP_NET_RAW is kept to spoof the
/// client's address; CAP_NET_ADMIN if there is no CAP_NET_RAW; both if an old kernel requires CAP_NET_ADMIN for `mark`.
/// CAP_NET_BIND_SERVICE is kept for ports below 1024.
///
/// The setup of a connection is tried with these capabilities alone, so that a missing permission fails the start
/// instead of each connection.
pub(super) fn drop_unneeded(mark: Option<NonZeroU32>) -> anyhow::Result<()> {
    let mut tried = Ok(());
    for sufficient in SUFFICIENT_CAPABILITIES {
        set_effective(sufficient)?;
        tried = try_connect_setup(mark);
        if tried.is_ok() {
            keep_only(sufficient)?;
            break;
        }
    }
    tried
}

/// Warns about a missing capability that affects some clients only.
pub(super) fn warn_of_missing() {
    if !is_effective(CapabilitySet::NET_BIND_SERVICE) {
        tracing::warn!(
            "without CAP_NET_BIND_SERVICE clients with a source port below 1024 (DNS, NTP, NFS) are \
             refused; grant it with CAP_NET_RAW"
        );
    }
}

/// Tries the setup of a connection, except connect(2).
pub(super) fn try_connect_setup(mark: Option<NonZeroU32>) -> anyhow::Result<()> {
    let socket = UpstreamSocket::new_tcp(SocketAddr::from(([127, 0, 0, 1], 0)))?;
    socket.set_transparent().with_context(|| {
        let advice = Advice::for_this_process();
        format!("connecting from a client's address needs CAP_NET_RAW or CAP_NET_ADMIN: {advice}")
    })?;
    socket
        .set_mark(mark)
        .context("--mark needs CAP_NET_RAW (since Linux 5.17) or CAP_NET_ADMIN")
}

/// Sets that may suffice, the smallest first.
const SUFFICIENT_CAPABILITIES: [CapabilitySet; 2] = [
    CapabilitySet::NET_RAW.union(CapabilitySet::NET_BIND_SERVICE),
    CapabilitySet::NET_RAW
        .union(CapabilitySet::NET_ADMIN)
        .union(CapabilitySet::NET_BIND_SERVICE),
];
