//! Listening TCP sockets.

use std::net::{SocketAddr, TcpListener};

use socket2::{Domain, Protocol, Socket, Type};

use crate::{NameCall, Result};

/// Opens a non-blocking listening socket on `addr`.
///
/// SO_REUSEADDR lets a restart follow at once. With `share`, SO_REUSEPORT lets several sockets of one
/// user listen on the address, and the kernel spreads connections over them (since Linux 3.9). An
/// IPv6 listener takes IPv6 only: IPv4 has a listener of its own, so that no address is ever seen in
/// two forms. The exception is `[::]`, which also takes IPv4 as every server's does.
///
/// The backlog is as deep as the kernel allows (`net.core.somaxconn`, which caps what we ask for).
pub fn tcp(addr: SocketAddr, share: bool) -> Result<TcpListener> {
    let socket = Socket::new(
        Domain::for_address(addr),
        Type::STREAM.nonblocking().cloexec(),
        Some(Protocol::TCP),
    )
    .call("socket(2)")?;
    if addr.is_ipv6() {
        socket
            .set_only_v6(!addr.ip().is_unspecified())
            .call("setsockopt(IPV6_V6ONLY)")?;
    }
    socket
        .set_reuse_address(true)
        .call("setsockopt(SO_REUSEADDR)")?;
    if share {
        socket
            .set_reuse_port(true)
            .call("setsockopt(SO_REUSEPORT)")?;
    }
    socket.bind(&addr.into()).call("bind(2)")?;
    socket.listen(i32::MAX).call("listen(2)")?;
    Ok(socket.into())
}
