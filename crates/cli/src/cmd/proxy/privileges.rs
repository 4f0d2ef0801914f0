//! The capabilities that connections need, tried before the first is served; all others are dropped.

use std::net::SocketAddr;
use std::num::NonZeroU32;

use anyhow::Context;
use peername_server::capabilities::Advice;
use peername_sys::process::caps::{Capability, is_effective, keep_only, set_effective};
use peername_sys::socket::upstream::UpstreamSocket;

/// Gives up every capability but the least with which each connection can be made: CAP_NET_RAW to
/// take the client's address, or CAP_NET_ADMIN where there is no other, or both where an old kernel
/// wants it for `mark`; and CAP_NET_BIND_SERVICE to take a port below 1024.
///
/// What each connection will do is tried with just these, so that a missing permission ends the
/// start and not, one by one, the connections.
pub(super) fn drop_unneeded(mark: Option<NonZeroU32>) -> anyhow::Result<()> {
    let mut last = Ok(());
    for sufficient in SUFFICIENT_CAPABILITIES {
        set_effective(sufficient)?;
        last = try_connect_setup(mark);
        if last.is_ok() {
            keep_only(sufficient)?;
            break;
        }
    }
    last
}

/// What still works, but not for every client.
pub(super) fn warn_of_missing() {
    if !is_effective(Capability::CAP_NET_BIND_SERVICE) {
        tracing::warn!(
            "without CAP_NET_BIND_SERVICE clients with a source port below 1024 (DNS, NTP, NFS) are \
             refused; grant it with CAP_NET_RAW"
        );
    }
}

/// Does once what connections will do, except to connect.
pub(super) fn try_connect_setup(mark: Option<NonZeroU32>) -> anyhow::Result<()> {
    let socket = UpstreamSocket::new_tcp(SocketAddr::from(([127, 0, 0, 1], 0)))?;
    socket.set_transparent().with_context(|| {
        let advice = Advice::for_this_process();
        format!("connecting from a client's address needs CAP_NET_RAW or CAP_NET_ADMIN: {advice}")
    })?;
    match mark {
        Some(mark) => socket
            .set_mark(mark.get())
            .context("--mark needs CAP_NET_RAW (since Linux 5.17) or CAP_NET_ADMIN"),
        None => Ok(()),
    }
}

const SUFFICIENT_CAPABILITIES: [&[Capability]; 2] = [
    &[Capability::CAP_NET_RAW, Capability::CAP_NET_BIND_SERVICE],
    &[
        Capability::CAP_NET_RAW,
        Capability::CAP_NET_ADMIN,
        Capability::CAP_NET_BIND_SERVICE,
    ],
];
