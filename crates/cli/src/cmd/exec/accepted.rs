//! Finds connections that were accepted before the program starts, as by inetd or systemd's `Accept=yes`: the program gets
//! them as descriptors, and nothing would read their headers.

use std::os::fd::{BorrowedFd, RawFd};

use peername_sys::ipc::listen_fds;
use peername_sys::socket::upstream::local_addr;
use peername_sys::tcp::socket_info;

/// Finds a descriptor that is a TCP connection on one of the covered ports: standard input, or one that a service manager
/// passes (sd_listen_fds(3)).
pub(super) fn find(is_covered: impl Fn(u16) -> bool) -> Option<RawFd> {
    [0].into_iter()
        .chain(listen_fds::announced().take(MAX_PASSED))
        .find(|&fd| is_covered_connection(fd, &is_covered))
}

fn is_covered_connection(fd: RawFd, is_covered: impl Fn(u16) -> bool) -> bool {
    let Some(socket) = socket_info::borrow_open(fd) else {
        return false;
    };
    is_tcp_connection(socket) && local_addr(socket).is_ok_and(|own| is_covered(own.port()))
}

fn is_tcp_connection(socket: BorrowedFd<'_>) -> bool {
    socket_info::protocol(socket).is_some() && socket_info::peer_addr(socket).is_ok()
}

/// Bounds the search, whatever LISTEN_FDS says; a service manager passes a few descriptors.
const MAX_PASSED: usize = 1024;
