//! Finds sockets that were opened before the program starts, as by inetd or systemd, and that the program gets as descriptors:
//! standard input, or those that a service manager passes (sd_listen_fds(3)).

use std::os::fd::{BorrowedFd, RawFd};

use peername_sys::ipc::listen_fds;
use peername_sys::socket::upstream::local_addr;
use peername_sys::tcp::socket_info;

/// Finds a TCP connection on one of the covered ports, as of `Accept=yes`: it is accepted already, so nothing would read its
/// header.
pub(super) fn find_connection(is_covered: impl Fn(u16) -> bool) -> Option<RawFd> {
    find(|socket| {
        is_tcp_connection(socket) && local_addr(socket).is_ok_and(|own| is_covered(own.port()))
    })
}

/// Finds a TCP listener or a UDP socket.
pub(super) fn find_listener() -> Option<RawFd> {
    find(|socket| is_tcp_listener(socket) || socket_info::is_udp(socket))
}

fn find(is_wanted: impl Fn(BorrowedFd<'_>) -> bool) -> Option<RawFd> {
    [0].into_iter()
        .chain(listen_fds::announced().take(MAX_PASSED))
        .find(|&fd| socket_info::borrow_open(fd).is_some_and(&is_wanted))
}

fn is_tcp_connection(socket: BorrowedFd<'_>) -> bool {
    socket_info::protocol(socket).is_some() && socket_info::peer_addr(socket).is_ok()
}

fn is_tcp_listener(socket: BorrowedFd<'_>) -> bool {
    socket_info::protocol(socket).is_some() && socket_info::is_listener(socket)
}

/// Bounds the search, whatever LISTEN_FDS says; a service manager passes a few descriptors.
const MAX_PASSED: usize = 1024;
