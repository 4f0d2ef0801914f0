//! Checks that the proxy can listen on an address.

pub(super) mod local_target;
pub(super) mod socket_table;

use std::io::ErrorKind;
use std::net::SocketAddr;

use peername_sys::Transport;
use peername_sys::tcp::listener;
use peername_sys::udp;

use self::socket_table::Holder;
use super::finding::Finding;

/// Binds the address and closes the socket again. A process of `checked`, a command, may listen there.
pub(super) fn can_be_opened(address: SocketAddr, transport: Transport, checked: &str) -> Finding {
    let protocol = protocol_of(transport);
    let opened = match transport {
        Transport::Tcp => listener::check_address_free(address),
        Transport::Udp => udp::check_address_free(address),
    };
    let Err(error) = opened else {
        return Finding::ok("listener", format!("{protocol} {address} is free"));
    };
    let seen = format!("{protocol} {address}: {error}");
    match error.source.kind() {
        ErrorKind::AddrInUse => in_use(address, transport, checked),
        ErrorKind::AddrNotAvailable => Finding::fail(
            "listener",
            seen,
            "no interface has this address: see `ip address`",
        ),
        ErrorKind::PermissionDenied if socket_table::is_taken(address, transport) => {
            in_use(address, transport, checked)
        }
        ErrorKind::PermissionDenied => Finding::fail(
            "listener",
            seen,
            "grant CAP_NET_BIND_SERVICE, or listen on a port of 1024 or above",
        ),
        _ => Finding::broken("listener", seen),
    }
}

fn in_use(address: SocketAddr, transport: Transport, checked: &str) -> Finding {
    let protocol = protocol_of(transport);
    match socket_table::holder_of(address, transport) {
        Some(holder) if holder.program == PROGRAM && !is_other(&holder.command, checked) => {
            Finding::ok(
                "listener",
                format!(
                    "{protocol} {address} is served by {PROGRAM}, process {}",
                    holder.pid
                ),
            )
        }
        Some(Holder { pid, name, .. }) => Finding::fail(
            "listener",
            format!("{protocol} {address} is in use by {name}, process {pid}"),
            "stop it, or listen on another port",
        ),
        None => Finding::warn(
            "listener",
            format!("{protocol} {address} is in use"),
            format!(
                "fine if that is peername; root sees: `ss -ltunp 'sport = {}'`",
                address.port()
            ),
        ),
    }
}

/// Whether a command is known as another one than that which is checked. The command lines of predecessors begin with options.
fn is_other(command: &str, checked: &str) -> bool {
    let listening = ["proxy", "forward", "intercept", "exec", "agent"];
    listening.contains(&command) && command != checked
}

fn protocol_of(transport: Transport) -> &'static str {
    match transport {
        Transport::Tcp => "TCP",
        Transport::Udp => "UDP",
    }
}

const PROGRAM: &str = "peername";
