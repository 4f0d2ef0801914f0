//! Options and addresses that TCP and UDP sockets have in common.

pub mod transparent;
pub mod upstream;

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use socket2::{SockFilter, Socket};

use crate::{NameCall, Result};

/// How a listening socket shares its address with others.
#[derive(Clone, Copy, Debug, Default)]
pub struct BindOptions {
    /// SO_REUSEPORT (since Linux 3.9): several sockets of one user listen on the address, one for each worker, and the
    /// kernel spreads connections over them.
    pub reuse_port: bool,
    /// IPV6_V6ONLY for `[::]`, which leaves IPv4 to another socket. Other IPv6 addresses never accept IPv4.
    pub v6_only: bool,
}

/// Attaches a filter that discards every datagram, until [`crate::udp::start_receiving`].
pub(crate) fn discard_all(socket: &Socket) -> Result<()> {
    socket
        .attach_filter(&[DISCARD_ALL])
        .call("setsockopt(SO_ATTACH_FILTER)")
}

pub(crate) fn set_int(
    socket: BorrowedFd<'_>,
    level: libc::c_int,
    option: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    // SAFETY: the option's value is one int, which lives across the call.
    let rc = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            (&raw const value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if rc < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// A filter that keeps 0 bytes of a packet: the kernel discards it (socket(7), SO_ATTACH_FILTER).
const DISCARD_ALL: SockFilter = SockFilter::new((libc::BPF_RET | libc::BPF_K) as u16, 0, 0, 0);
