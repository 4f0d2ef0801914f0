//! What the stages do with a connected TCP socket.
//!
//! All sockets here are non-blocking; "not ready" is `ErrorKind::WouldBlock`, as everywhere in `std`.

use std::io;
use std::mem::size_of;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr;
use std::time::Duration;

use rustix::net::{RecvFlags, SendFlags, Shutdown, recv as rustix_recv, send as rustix_send};
use socket2::{SockRef, TcpKeepalive};

use crate::{NameCall, Result};

/// Reads at most `buffer.len()` bytes; `Ok(0)` is the end of the stream.
pub fn recv(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<usize> {
    Ok(rustix_recv(socket, buffer, RecvFlags::empty())?.0)
}

/// Reads as [`recv`] does but leaves the bytes in the socket.
pub fn peek(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<usize> {
    Ok(rustix_recv(socket, buffer, RecvFlags::PEEK)?.0)
}

/// Writes what the send buffer takes; never raises SIGPIPE.
pub fn send(socket: impl AsFd, bytes: &[u8]) -> io::Result<usize> {
    Ok(rustix_send(socket, bytes, SendFlags::NOSIGNAL)?)
}

/// Throws away up to `len` received bytes without copying them (tcp(7), MSG_TRUNC since Linux 2.4).
pub fn discard(socket: impl AsFd, len: usize) -> io::Result<usize> {
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: with MSG_TRUNC a TCP socket writes nothing to the buffer, so a null pointer with any
    // length is never followed (tcp(7)).
    let n = unsafe { libc::recv(fd, ptr::null_mut(), len, libc::MSG_TRUNC) };
    usize::try_from(n).map_err(|_| io::Error::last_os_error())
}

/// Sends FIN after everything written so far; the other direction stays open.
pub fn finish(socket: impl AsFd) -> io::Result<()> {
    Ok(rustix::net::shutdown(socket, Shutdown::Write)?)
}

/// Makes the coming close send RST instead of FIN (SO_LINGER with zero seconds, socket(7)). What is
/// still in the send buffer is thrown away: see [`unsent`].
pub fn reset_on_close(socket: impl AsFd) -> io::Result<()> {
    SockRef::from(&socket).set_linger(Some(Duration::ZERO))
}

/// Bytes written but not yet acknowledged by the peer (SIOCOUTQ, tcp(7)).
pub fn unsent(socket: impl AsFd) -> io::Result<u32> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: SIOCOUTQ writes one int, and `bytes` is one.
    let rc = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    if rc < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(bytes.unsigned_abs())
    }
}

/// Takes the pending error of the socket (SO_ERROR); `None` when there is none.
pub fn take_error(socket: impl AsFd) -> io::Result<Option<io::Error>> {
    SockRef::from(&socket).take_error()
}

/// The settings of every connection we carry: no Nagle delay (we write when there is something to
/// write), and keepalive so that a peer that vanished is noticed within about two minutes.
pub fn tune(socket: impl AsFd) -> Result<()> {
    let socket = SockRef::from(&socket);
    socket
        .set_tcp_nodelay(true)
        .call("setsockopt(TCP_NODELAY)")?;
    socket
        .set_tcp_keepalive(&KEEPALIVE)
        .call("setsockopt(SO_KEEPALIVE)")
}

/// As [`tune`], for a socket that is to connect to `host`. A loopback peer can't vanish without the
/// kernel telling, so keepalive is for others.
pub fn tune_to(socket: impl AsFd, host: IpAddr) -> Result<()> {
    if host.is_loopback() {
        return SockRef::from(&socket)
            .set_tcp_nodelay(true)
            .call("setsockopt(TCP_NODELAY)");
    }
    tune(socket)
}

/// One minute of silence, then six probes ten seconds apart.
const KEEPALIVE: TcpKeepalive = TcpKeepalive::new()
    .with_time(Duration::from_secs(60))
    .with_interval(Duration::from_secs(10))
    .with_retries(6);

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
