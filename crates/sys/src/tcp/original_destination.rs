//! The original destination of a connection that a REDIRECT rule sent to this host.

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd};

/// The original destination of an accepted connection (SO_ORIGINAL_DST of nf_conntrack, since Linux 2.4;
/// IP6T_SO_ORIGINAL_DST since 3.8); `None` where no rule has changed it, or connections are not tracked.
///
/// # Errors
///
/// Those of getsockopt(2) that have another cause.
pub fn original_destination(socket: impl AsFd, v6: bool) -> io::Result<Option<SocketAddr>> {
    let found = match v6 {
        false => {
            ask::<libc::sockaddr_in>(&socket, libc::SOL_IP, libc::SO_ORIGINAL_DST).map(|addr| {
                let ip = Ipv4Addr::from(u32::from_be(addr.sin_addr.s_addr));
                SocketAddrV4::new(ip, u16::from_be(addr.sin_port)).into()
            })
        }
        true => ask::<libc::sockaddr_in6>(&socket, libc::SOL_IPV6, libc::IP6T_SO_ORIGINAL_DST).map(
            |addr| {
                let ip = Ipv6Addr::from(addr.sin6_addr.s6_addr);
                let port = u16::from_be(addr.sin6_port);
                SocketAddrV6::new(ip, port, 0, addr.sin6_scope_id).into()
            },
        ),
    };
    match found {
        Ok(addr) => Ok(Some(addr)),
        Err(error) => match error.raw_os_error() {
            Some(libc::ENOENT | libc::ENOPROTOOPT | libc::EOPNOTSUPP) => Ok(None),
            _ => Err(error),
        },
    }
}

fn ask<T: Copy>(socket: &impl AsFd, level: libc::c_int, option: libc::c_int) -> io::Result<T> {
    let mut addr = MaybeUninit::<T>::zeroed();
    let mut len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes, which `addr` has.
    let rc = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            level,
            option,
            addr.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    if rc < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `T` is one of the two socket address types. Zero is valid for both, and the kernel has written an address
    // over it.
    Ok(unsafe { addr.assume_init() })
}
