//! Connections that were accepted before the program is started, whose headers nothing would read: inetd, systemd's `Accept=yes`
//! and `sshd -i` hand them over as descriptors.

use std::env;
use std::os::fd::{BorrowedFd, RawFd};
use std::process;

use peername_sys::socket::upstream::local_addr;
use peername_sys::tcp::socket_info;

/// Finds a descriptor that is a TCP connection on one of the covered ports: standard input, or one that a service manager
/// passes (sd_listen_fds(3)).
pub(super) fn find(is_covered: impl Fn(u16) -> bool) -> Option<RawFd> {
    let number = |name| env::var(name).ok()?.parse::<RawFd>().ok();
    let is_for_us = number("LISTEN_PID") == RawFd::try_from(process::id()).ok();
    let passed = number("LISTEN_FDS").filter(|_| is_for_us).unwrap_or(0);
    let end = FIRST_PASSED.saturating_add(passed.clamp(0, MAX_PASSED));
    [0].into_iter()
        .chain(FIRST_PASSED..end)
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

/// SD_LISTEN_FDS_START.
const FIRST_PASSED: RawFd = 3;
/// A service manager passes a few.
const MAX_PASSED: RawFd = 1024;
