//! Checks that the proxy can listen on an address.

use std::io::ErrorKind;
use std::net::SocketAddr;

use peername_sys::Transport;
use peername_sys::tcp::listener;
use peername_sys::udp;

use super::finding::Finding;

/// Binds the address and closes the socket again.
pub(super) fn can_be_opened(address: SocketAddr, transport: Transport) -> Finding {
    let (opened, protocol) = match transport {
        Transport::Tcp => (listener::check_address_free(address), "TCP"),
        Transport::Udp => (udp::check_address_free(address), "UDP"),
    };
    let Err(error) = opened else {
        return Finding::ok("listener", format!("{protocol} {address} is free"));
    };
    let seen = format!("{protocol} {address}: {error}");
    match error.source.kind() {
        ErrorKind::AddrInUse => Finding::warn(
            "listener",
            seen,
            format!(
                "fine if that is the proxy; else see `ss -ltunp 'sport = {}'`",
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
