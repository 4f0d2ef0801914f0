//! What the proxy must be allowed to do, found out before it serves anybody.

use std::net::SocketAddr;

use anyhow::bail;
use peername_proxy::config::Config;
use peername_sys::caps::{Capability, have, keep_only};
use peername_sys::upstream::Upstream;

/// Tries what each connection will do, so that a missing permission ends the start and not, one by
/// one, the connections.
pub(super) fn check(config: &Config) -> anyhow::Result<()> {
    let probe = SocketAddr::from(([127, 0, 0, 1], 0));
    let socket = Upstream::new(probe)?;
    if let Err(error) = socket.transparent() {
        bail!(
            "{error}; connecting from a client's address needs CAP_NET_RAW: run as root, or \
             `setcap cap_net_raw,cap_net_bind_service+ep` on the binary, or AmbientCapabilities= in \
             the unit"
        );
    }
    if let Some(mark) = config.upstream.mark
        && let Err(error) = socket.mark(mark.get())
    {
        bail!("{error}; --mark needs CAP_NET_RAW (since Linux 5.17) or CAP_NET_ADMIN");
    }
    Ok(())
}

/// From here on only what each connection needs: CAP_NET_RAW to take the client's address,
/// CAP_NET_BIND_SERVICE to take a port below 1024. CAP_NET_ADMIN stays only where it has to stand in
/// for a missing CAP_NET_RAW.
pub(super) fn drop_all_but_needed() -> anyhow::Result<()> {
    let spoof = if have(Capability::CAP_NET_RAW) {
        Capability::CAP_NET_RAW
    } else {
        Capability::CAP_NET_ADMIN
    };
    Ok(keep_only(&[spoof, Capability::CAP_NET_BIND_SERVICE])?)
}

/// What still works, but not for every client.
pub(super) fn warn_of_missing() {
    if !have(Capability::CAP_NET_BIND_SERVICE) {
        tracing::warn!(
            "without CAP_NET_BIND_SERVICE clients whose own port is below 1024 (DNS, NTP, NFS) are \
             refused; grant it with CAP_NET_RAW"
        );
    }
}
