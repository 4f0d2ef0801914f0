//! Connected TCP sockets: receive, peek, send, half-close, reset, and socket options.
//!
//! All sockets here are non-blocking; "not ready" is `ErrorKind::WouldBlock`, as in `std`. Functions that return
//! [`io::Result`] fail with the error of the system call that they name.

use std::io;
use std::mem::{self, size_of};
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr;
use std::time::Duration;

use rustix::io::ioctl_fionbio;
use rustix::net::{RecvFlags, SendFlags, Shutdown};
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};

use crate::error::checked;
use crate::socket::{get_option, set_int};
use crate::{NameCall, Result};

/// The result of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Bytes in the buffer; 0 is the end of the stream.
    pub len: usize,
    /// Whether another read now would return something: more bytes, or the end of the stream.
    pub more: bool,
}

/// Reads at most `buffer.len()` bytes (recvmsg(2)) and reports in the same call whether more is queued.
///
/// A short read alone does not mean that nothing is left: the kernel also stops at the mark of urgent data, even with bytes
/// behind it. [`tune`] enables the count of queued bytes (TCP_INQ, tcp(7), since Linux 4.18; it counts FIN). On
/// a socket without it, `more` is true.
///
/// # Errors
///
/// EAGAIN; ECONNRESET and ETIMEDOUT of the connection, each reported once.
pub fn recv(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<Received> {
    let mut iov = libc::iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: buffer.len(),
    };
    let mut control = Control([0; CONTROL_SPACE]);
    // SAFETY: all-zero is a valid msghdr.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_iov = &raw mut iov;
    message.msg_iovlen = 1;
    message.msg_control = (&raw mut control).cast();
    message.msg_controllen = size_of::<Control>() as _;
    let fd = socket.as_fd().as_raw_fd();
    // The bare system call: glibc's recvmsg(3) is a cancellation point, which costs time in each call.
    // SAFETY: the message refers to `iov`, `control` and through `iov` to `buffer`, which all live
    // across the call, each with its true length.
    let n = unsafe { libc::syscall(libc::SYS_recvmsg, fd, &raw mut message, 0) };
    let len = usize::try_from(n).map_err(|_| io::Error::last_os_error())?;
    Ok(Received {
        len,
        more: left_in_queue(&message) != Some(0),
    })
}

/// Like [`recv`], after FIN of the peer was reported: the end of the stream is always left to be read, so the length of the
/// queue need not be queried (recv(2)).
pub fn recv_before_end(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<Received> {
    let len = rustix::net::recv(socket, buffer, RecvFlags::empty())?.0;
    Ok(Received { len, more: true })
}

/// A buffer for one control message with an int, aligned as its header must be.
#[repr(C, align(8))]
struct Control([u8; CONTROL_SPACE]);
/// 16 bytes of header, an int, padding (cmsg(3)); with some to spare.
const CONTROL_SPACE: usize = 64;

/// The bytes left in the queue (TCP_INQ); `None` if the kernel did not report them.
fn left_in_queue(message: &libc::msghdr) -> Option<libc::c_int> {
    // SAFETY: the kernel filled `message`; CMSG_FIRSTHDR returns null or a header inside its control
    // buffer, which is still alive.
    let header = unsafe { libc::CMSG_FIRSTHDR(message).as_ref() }?;
    if (header.cmsg_level, header.cmsg_type) != (libc::SOL_TCP, libc::TCP_CM_INQ) {
        return None;
    }
    // SAFETY: TCP_CM_INQ carries one int, behind its header.
    Some(unsafe {
        libc::CMSG_DATA(header)
            .cast::<libc::c_int>()
            .read_unaligned()
    })
}

/// Peeks: copies at most `buffer.len()` bytes but leaves them in the socket (MSG_PEEK); 0 is the end of the stream. Never
/// blocks, not even on a blocking socket.
pub fn peek(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<usize> {
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    Ok(rustix::net::recv(socket, buffer, flags)?.0)
}

/// Writes as much as the send buffer accepts (send(2)); never raises SIGPIPE.
///
/// # Errors
///
/// EAGAIN when the send buffer is full; EPIPE, ECONNRESET and ETIMEDOUT of the connection.
pub fn send(socket: impl AsFd, bytes: &[u8]) -> io::Result<usize> {
    Ok(rustix::net::send(socket, bytes, SendFlags::NOSIGNAL)?)
}

/// Discards up to `len` received bytes without copying them (tcp(7), MSG_TRUNC since Linux 2.4). Never
/// blocks, not even on a blocking socket.
pub fn discard(socket: impl AsFd, len: usize) -> io::Result<usize> {
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: with MSG_TRUNC a TCP socket writes nothing to the buffer, so a null pointer with any
    // length is never followed (tcp(7)).
    let n = unsafe {
        libc::recv(
            fd,
            ptr::null_mut(),
            len,
            libc::MSG_TRUNC | libc::MSG_DONTWAIT,
        )
    };
    usize::try_from(n).map_err(|_| io::Error::last_os_error())
}

/// Half-close: sends FIN after everything written so far; the other direction stays open (shutdown(2)).
///
/// # Errors
///
/// ENOTCONN once the connection was reset.
pub fn shutdown_write(socket: impl AsFd) -> io::Result<()> {
    Ok(rustix::net::shutdown(socket, Shutdown::Write)?)
}

/// Makes close(2) send RST instead of FIN (SO_LINGER with zero seconds, socket(7)). What is
/// still in the send buffer is discarded: see [`send_queue_len`].
pub fn reset_on_close(socket: impl AsFd) -> io::Result<()> {
    SockRef::from(&socket).set_linger(Some(Duration::ZERO))
}

/// Bytes written but not yet acknowledged by the peer (SIOCOUTQ, tcp(7)).
///
/// # Errors
///
/// Those of ioctl(2): EINVAL for a listening socket.
pub fn send_queue_len(socket: impl AsFd) -> io::Result<u32> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: SIOCOUTQ writes one int, and `bytes` is one.
    let rc = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    checked(rc).map(|_| bytes.unsigned_abs())
}

/// Takes the pending error of the socket (SO_ERROR); `None` when there is none.
pub fn take_error(socket: impl AsFd) -> io::Result<Option<io::Error>> {
    SockRef::from(&socket).take_error()
}

/// Makes calls fail with EAGAIN rather than block, or block again (FIONBIO, ioctl(2)). This applies to the open file, and so to
/// all its descriptors.
pub fn set_nonblocking(socket: impl AsFd, nonblocking: bool) -> io::Result<()> {
    Ok(ioctl_fionbio(socket, nonblocking)?)
}

/// Sets the low-water mark: how many bytes must be queued before the socket is readable (SO_RCVLOWAT, socket(7)).
///
/// Since Linux 4.18 the kernel makes the receive buffer large enough for them, unless SO_RCVBUF has fixed it. If that many
/// bytes are queued already, the call causes an event of epoll(7), even an edge-triggered one.
pub fn set_receive_low_water(socket: impl AsFd, bytes: usize) -> io::Result<()> {
    let bytes = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
    set_int(socket.as_fd(), libc::SOL_SOCKET, libc::SO_RCVLOWAT, bytes)
}

/// Reads the low-water mark ([`set_receive_low_water`]).
pub fn receive_low_water(socket: impl AsFd) -> io::Result<usize> {
    // SAFETY: an integer has no invalid bits.
    let bytes: libc::c_int = unsafe { get_option(socket, libc::SOL_SOCKET, libc::SO_RCVLOWAT) }?;
    usize::try_from(bytes).map_err(io::Error::other)
}

/// Sets the options of every relayed connection; accepted sockets inherit them from their listener.
///
/// TCP_NODELAY: no Nagle delay. SO_OOBINLINE: urgent data stays in its place in the stream, so that it is not lost.
/// TCP_INQ: a count of what a read left ([`recv`]). SO_KEEPALIVE: a peer that vanished is detected within about two
/// minutes.
pub fn tune(socket: impl AsFd) -> Result<()> {
    tune_for_messages(socket.as_fd())?;
    SockRef::from(&socket)
        .set_tcp_keepalive(&KEEPALIVE)
        .call("setsockopt(SO_KEEPALIVE)")
}

/// Like [`tune`], for a socket that is to connect to `host`, or listens on it.
///
/// A loopback peer can't vanish unnoticed, so it needs no keepalive. Nor can loopback be congested, so it gets Reno, which
/// leaves the pace to the receiver's window, and which any process may choose (tcp(7), TCP_CONGESTION). An algorithm that
/// models a path mistakes the scheduler's delays for queues: BBR halved the rate of bulk and doubled its CPU time.
pub fn tune_for_peer(socket: impl AsFd, host: IpAddr) -> Result<()> {
    if !host.is_loopback() {
        return tune(socket);
    }
    tune_for_messages(socket.as_fd())?;
    // A failure only makes the connection slower.
    let _ = SockRef::from(&socket).set_tcp_congestion(b"reno");
    Ok(())
}

/// Like [`tune`], for a socket that was tuned for loopback ([`tune_for_peer`]) but has a remote peer: restores the
/// default congestion control (`net.ipv4.tcp_congestion_control`).
///
/// # Errors
///
/// EMFILE, since a new socket is opened to read the default.
pub fn tune_for_network(socket: impl AsFd) -> Result<()> {
    tune(socket.as_fd())?;
    let fresh = Socket::new(Domain::IPV4, Type::STREAM.cloexec(), Some(Protocol::TCP));
    let name = fresh.call("socket(2)")?.tcp_congestion();
    let name = name.call("getsockopt(TCP_CONGESTION)")?;
    SockRef::from(&socket)
        .set_tcp_congestion(&name)
        .call("setsockopt(TCP_CONGESTION)")
}

fn tune_for_messages(socket: BorrowedFd<'_>) -> Result<()> {
    set_int(socket, libc::SOL_TCP, libc::TCP_NODELAY, 1).call("setsockopt(TCP_NODELAY)")?;
    set_int(socket, libc::SOL_SOCKET, libc::SO_OOBINLINE, 1).call("setsockopt(SO_OOBINLINE)")?;
    match set_int(socket, libc::SOL_TCP, libc::TCP_INQ, 1) {
        // Before Linux 4.18: reads cost another call.
        Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => Ok(()),
        result => result.call("setsockopt(TCP_INQ)"),
    }
}

/// One minute of silence, then six probes ten seconds apart.
const KEEPALIVE: TcpKeepalive = TcpKeepalive::new()
    .with_time(Duration::from_secs(60))
    .with_interval(Duration::from_secs(10))
    .with_retries(6);

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn loopback_uses_reno_and_no_keepalive() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
        tune_for_peer(&listener, IpAddr::from([127, 0, 0, 1])).expect("settings");
        let addr = listener.local_addr().expect("its address");
        let _from = std::net::TcpStream::connect(addr).expect("a connection");
        let (accepted, _) = listener.accept().expect("the connection");
        assert_eq!(algorithm(&accepted), "reno");
        assert!(!SockRef::from(&accepted).keepalive().expect("a setting"));

        let elsewhere = Socket::new(Domain::IPV4, Type::STREAM, None);
        let elsewhere = elsewhere.expect("a socket");
        let default = algorithm(&elsewhere);
        tune_for_peer(&elsewhere, IpAddr::from([192, 0, 2, 1])).expect("settings");
        assert_eq!(algorithm(&elsewhere), default);
        assert!(SockRef::from(&elsewhere).keepalive().expect("a setting"));

        tune_for_network(&listener).expect("settings");
        assert_eq!(algorithm(&listener), default);
        assert!(SockRef::from(&listener).keepalive().expect("a setting"));
    }

    fn algorithm(socket: impl AsFd) -> String {
        let name = SockRef::from(&socket).tcp_congestion().expect("a name");
        let end = name.iter().position(|byte| *byte == 0);
        String::from_utf8_lossy(&name[..end.unwrap_or(name.len())]).into_owned()
    }
}
