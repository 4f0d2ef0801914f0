//! Listening TCP sockets and their accept backlog.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;

use rustix::net::{Shutdown, SocketFlags, acceptfrom_with};
use socket2::{Protocol, Type};

use super::socket_info::{is_listener, tcp_info};
use crate::socket::{self, BindOptions};
use crate::{NameCall, Result};

/// Opens a non-blocking listening socket on `addr`.
///
/// SO_REUSEADDR allows an immediate restart. The accept backlog is as large as the kernel allows
/// (`net.core.somaxconn` caps it).
pub fn listen(addr: SocketAddr, options: BindOptions) -> Result<TcpListener> {
    let socket = bind(addr, options)?;
    start_listening(&socket)?;
    Ok(socket)
}

/// Binds a non-blocking socket to `addr`. It gets no connection before [`start_listening`], not even with SO_REUSEPORT beside
/// sockets that listen.
///
/// # Errors
///
/// EADDRINUSE, EADDRNOTAVAIL, EACCES for a privileged port; EMFILE or ENFILE.
pub fn bind(addr: SocketAddr, options: BindOptions) -> Result<TcpListener> {
    let socket = socket::open(addr, Type::STREAM, Protocol::TCP)?;
    options.set_on(&socket, addr)?;
    socket
        .set_reuse_address(true)
        .call("setsockopt(SO_REUSEADDR)")?;
    socket.bind(&addr.into()).call("bind(2)")?;
    Ok(socket.into())
}

/// Makes a bound socket listen. A socket that listens already keeps its accept backlog as it is.
///
/// # Errors
///
/// EADDRINUSE: another program has begun to listen on the address since it was bound.
pub fn start_listening(socket: impl AsFd) -> Result<()> {
    if is_listener(&socket) {
        return Ok(());
    }
    rustix::net::listen(socket, i32::MAX).call("listen(2)")
}

/// Checks that no socket listens on `addr`, not even with SO_REUSEPORT.
pub fn check_address_free(addr: SocketAddr) -> Result<()> {
    bind(addr, BindOptions::ALONE).map(drop)
}

/// Accepts the next connection as a non-blocking socket, and returns it with its peer's address.
///
/// # Errors
///
/// EAGAIN when the backlog is empty; errors of one connection ([`crate::is_per_connection_error`]); EMFILE, ENFILE,
/// ENOBUFS or ENOMEM; EINVAL when the socket does not listen any more.
pub fn accept(listener: impl AsFd) -> io::Result<(TcpStream, SocketAddr)> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let (socket, peer) = acceptfrom_with(listener, flags)?;
    let peer = peer.ok_or(io::ErrorKind::InvalidInput)?;
    Ok((socket.into(), SocketAddr::try_from(peer)?))
}

/// Shrinks the accept backlog of a draining listener to a single connection, by another listen(2) with 0. Queued connections
/// stay. The kernel ignores further SYNs, so that clients retry until the socket is closed. A socket that no longer listens is
/// left alone, because listen(2) would make it listen again.
pub fn shrink_backlog(listener: impl AsFd) -> Result<()> {
    if !is_listener(&listener) {
        return Ok(());
    }
    rustix::net::listen(listener, 0).call("listen(2)")
}

/// Stops listening, in every process that has the socket open (shutdown(2)). Connections in its accept backlog are reset, and
/// the address is free for sockets with SO_REUSEADDR.
///
/// # Errors
///
/// ENOTCONN: the socket does not listen.
pub fn stop(listener: impl AsFd) -> Result<()> {
    rustix::net::shutdown(listener, Shutdown::Read).call("shutdown(2)")
}

/// The number of connections in the accept backlog (tcp(7), TCP_INFO).
pub fn accept_queue_len(listener: impl AsFd) -> Result<usize> {
    // For a listening socket, `tcpi_unacked` is the length of the accept queue.
    tcp_info(listener)
        .map(|info| info.tcpi_unacked as usize)
        .call("getsockopt(TCP_INFO)")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stopped_listener_does_not_listen_again() {
        let address = "127.0.0.1:0".parse().unwrap();
        let listener = listen(address, BindOptions::default()).unwrap();
        shrink_backlog(&listener).unwrap();
        assert!(is_listener(&listener));
        stop(&listener).unwrap();
        shrink_backlog(&listener).unwrap();
        assert!(!is_listener(&listener));
    }
}
