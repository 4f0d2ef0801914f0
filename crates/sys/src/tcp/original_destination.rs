//! The original destination of a connection that a REDIRECT rule sent to this host.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;

use rustix::io::Errno;
use rustix::net::sockopt;

/// The original destination of an accepted connection (SO_ORIGINAL_DST of nf_conntrack, since Linux 2.4; IP6T_SO_ORIGINAL_DST
/// since 3.8). It is the local address where no rule has changed it. `None` if the connection is not tracked.
pub fn original_destination(socket: impl AsFd, v6: bool) -> io::Result<Option<SocketAddr>> {
    let found = if v6 {
        sockopt::ipv6_original_dst(socket).map(|mut addr| {
            // The flow label is the socket's, and no part of the destination.
            addr.set_flowinfo(0);
            SocketAddr::V6(addr)
        })
    } else {
        sockopt::ip_original_dst(socket).map(SocketAddr::V4)
    };
    match found {
        Ok(addr) => Ok(Some(addr)),
        Err(Errno::NOENT | Errno::NOPROTOOPT | Errno::OPNOTSUPP) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
