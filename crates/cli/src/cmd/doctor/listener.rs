//! Can the proxy listen where it is to?

use std::io::ErrorKind;
use std::net::SocketAddr;

use peername_sys::listen::{self, Sharing};

use super::finding::Finding;

/// Opens the address and closes it again.
pub(super) fn can_be_opened(address: SocketAddr) -> Finding {
    let Err(error) = listen::tcp(address, Sharing::default()) else {
        return Finding::ok("listener", format!("{address} is free"));
    };
    let seen = format!("{address}: {error}");
    match error.source.kind() {
        ErrorKind::AddrInUse => Finding::warn(
            "listener",
            seen,
            format!(
                "fine if that is the proxy; else see `ss -ltnp sport = {}`",
                address.port()
            ),
        ),
        ErrorKind::AddrNotAvailable => Finding::fail(
            "listener",
            seen,
            "no interface has this address: see `ip address`",
        ),
        ErrorKind::PermissionDenied => Finding::fail(
            "listener",
            seen,
            "grant CAP_NET_BIND_SERVICE, or listen on a port of 1024 or above",
        ),
        _ => Finding::broken("listener", seen),
    }
}
