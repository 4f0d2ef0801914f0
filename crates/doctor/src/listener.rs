//! Checks that the proxy can listen on an address.

pub(crate) mod local_target;
pub(crate) mod socket_table;

use std::io::ErrorKind;
use std::net::SocketAddr;

use peername_sys::Transport;
use peername_sys::tcp::listener;
use peername_sys::udp;

use self::socket_table::Holder;
use crate::finding::Finding;

/// Binds the address and closes the socket again. A process of peername that runs `command` may listen there already.
pub fn check(address: SocketAddr, transport: Transport, command: &str) -> Finding {
    let protocol = protocol_name(transport);
    let opened = match transport {
        Transport::Tcp => listener::check_address_free(address),
        Transport::Udp => udp::check_address_free(address),
    };
    let Err(error) = opened else {
        return Finding::ok("listener", format!("{protocol} {address} is free"));
    };
    let seen = format!("{protocol} {address}: {error}");
    match error.source.kind() {
        ErrorKind::AddrInUse => in_use(address, transport, command),
        ErrorKind::AddrNotAvailable => Finding::fail(
            "listener",
            seen,
            "no interface has this address: see `ip address`",
        ),
        ErrorKind::PermissionDenied if socket_table::is_taken(address, transport) => {
            in_use(address, transport, command)
        }
        ErrorKind::PermissionDenied => Finding::fail(
            "listener",
            seen,
            "grant CAP_NET_BIND_SERVICE, or listen on a port of 1024 or above",
        ),
        _ => Finding::broken("listener", seen),
    }
}

/// Whether the address is in use by a process of peername that runs `command`: `false` without root, because only root sees
/// which process has a socket.
pub fn is_served(address: SocketAddr, transport: Transport, command: &str) -> bool {
    socket_table::is_taken(address, transport)
        && socket_table::find_holder(address, transport)
            .is_some_and(|holder| is_running(&holder, command))
}

fn in_use(address: SocketAddr, transport: Transport, command: &str) -> Finding {
    let protocol = protocol_name(transport);
    match socket_table::find_holder(address, transport) {
        Some(holder) if is_running(&holder, command) => Finding::ok(
            "listener",
            format!(
                "{protocol} {address} is served by {PROGRAM}, process {}",
                holder.pid
            ),
        ),
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

/// Whether the process is one of peername that runs `command`.
pub(crate) fn is_running(process: &Holder, command: &str) -> bool {
    process.program == PROGRAM && !is_other_command(&process.command, command)
}

/// Whether the first word of a command line names another listening command. In the command lines of peername's predecessors
/// (`compat`) that word is an option.
fn is_other_command(word: &str, command: &str) -> bool {
    let listening = ["proxy", "forward", "intercept", "exec", "agent"];
    listening.contains(&word) && word != command
}

fn protocol_name(transport: Transport) -> &'static str {
    match transport {
        Transport::Tcp => "TCP",
        Transport::Udp => "UDP",
    }
}

const PROGRAM: &str = "peername";
