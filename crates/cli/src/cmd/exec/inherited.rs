//! Finds sockets that were opened before the program starts, and that the program gets as descriptors: standard input, as by
//! inetd, those that a service manager passes (sd_listen_fds(3)), or any other, as by a server's earlier process at its upgrade.

use std::os::fd::{BorrowedFd, RawFd};

use peername_sys::Result;
use peername_sys::ipc::listen_fds;
use peername_sys::process::limits::open_files;
use peername_sys::socket::upstream::{ephemeral_ports, local_addr};
use peername_sys::tcp::socket_info;

use super::listener_policy_args::ListenerPolicyArgs;

/// Finds a TCP connection on one of the covered ports, as of `Accept=yes`: it is accepted already, so nothing would read its
/// header.
///
/// # Errors
///
/// ENOENT without /proc; EMFILE.
pub(super) fn find_connection(policy: &ListenerPolicyArgs) -> Result<Option<RawFd>> {
    find(|number, socket| {
        is_tcp_connection(socket)
            && local_addr(socket).is_ok_and(|own| {
                let port = own.port();
                policy.covers(port) && !may_be_outgoing(number, port, policy)
            })
    })
}

/// Finds a TCP socket that listens or may listen later on one of the covered ports in another network namespace than this
/// process's, as of a socket unit whose service has `PrivateNetwork=yes`: the supervisor could not wake that listener, nor find its
/// closed connections.
///
/// # Errors
///
/// ENOENT without /proc; EMFILE.
pub(super) fn find_foreign_listener(policy: &ListenerPolicyArgs) -> Result<Option<RawFd>> {
    let own = socket_info::current_netns_cookie();
    find(|_, socket| {
        is_tcp_without_peer(socket)
            && local_addr(socket).is_ok_and(|addr| policy.covers(addr.port()))
            && socket_info::netns_cookie(socket) != own
    })
}

/// Finds a socket at which the program could get clients: a TCP socket that listens or may listen later, or a UDP socket.
///
/// # Errors
///
/// ENOENT without /proc; EMFILE.
pub(super) fn find_listener() -> Result<Option<RawFd>> {
    find(|_, socket| is_tcp_without_peer(socket) || socket_info::is_udp(socket))
}

fn find(is_wanted: impl Fn(RawFd, BorrowedFd<'_>) -> bool) -> Result<Option<RawFd>> {
    Ok(open_files()?.into_iter().find(|&number| {
        socket_info::borrow_open(number).is_some_and(|socket| is_wanted(number, socket))
    }))
}

/// Whether the program's parent may have opened this connection itself, such as a script that has waited for a database. If all
/// ports are covered, then so are those that connect(2) chooses.
fn may_be_outgoing(number: RawFd, port: u16, policy: &ListenerPolicyArgs) -> bool {
    let is_passed_on_purpose = number == 0 || listen_fds::announced().contains(&number);
    !is_passed_on_purpose
        && policy.ports.is_empty()
        && ephemeral_ports().is_ok_and(|ephemeral| ephemeral.contains(&port))
}

fn is_tcp_connection(socket: BorrowedFd<'_>) -> bool {
    socket_info::protocol(socket).is_some() && socket_info::peer_addr(socket).is_ok()
}

fn is_tcp_without_peer(socket: BorrowedFd<'_>) -> bool {
    socket_info::protocol(socket).is_some() && socket_info::peer_addr(socket).is_err()
}
