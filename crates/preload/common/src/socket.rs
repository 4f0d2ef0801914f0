//! A socket of the program, as a value.

use core::ffi::c_int;
use core::net::SocketAddr;

use crate::kernel::{self, Endpoint, Errno, MSG_DONTWAIT, MSG_PEEK, Result, SOL_SOCKET};

/// A descriptor of a socket. Not closed when dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Socket(pub c_int);

impl Socket {
    /// The local address (getsockname(2)); `None` unless it is an IPv4 or IPv6 address.
    pub fn local(self) -> Option<SocketAddr> {
        kernel::socket_name(self.0, Endpoint::Local)
            .ok()?
            .socket_addr()
    }

    /// The peer's address as the kernel has it; `None` unless there is a peer with an IPv4 or IPv6 address.
    pub fn peer(self) -> Option<SocketAddr> {
        kernel::socket_name(self.0, Endpoint::Peer)
            .ok()?
            .socket_addr()
    }

    /// TCP or MPTCP (SO_PROTOCOL); `None` for everything else.
    pub fn protocol(self) -> Option<Protocol> {
        match kernel::get_option::<c_int>(self.0, SOL_SOCKET, SO_PROTOCOL) {
            Ok(IPPROTO_TCP) => Some(Protocol::Tcp),
            Ok(IPPROTO_MPTCP) => Some(Protocol::Multipath),
            _ => None,
        }
    }

    /// The kernel's number of the socket (SO_COOKIE). An accepted MPTCP socket may have its listener's.
    pub fn cookie(self) -> Option<u64> {
        kernel::get_option(self.0, SOL_SOCKET, SO_COOKIE).ok()
    }

    /// The inode number (fstat(2)).
    pub fn inode(self) -> Option<u64> {
        kernel::inode(self.0).ok()
    }

    /// The kernel's number of the socket's network namespace (SO_NETNS_COOKIE); 0 where the kernel has no such option.
    pub fn namespace(self) -> u64 {
        kernel::get_option(self.0, SOL_SOCKET, SO_NETNS_COOKIE).unwrap_or(0)
    }

    /// Peeks at the received bytes without blocking. Returns their number, which is 0 if there are none yet; `None` at the end
    /// of the stream.
    ///
    /// # Errors
    ///
    /// An error of recvfrom(2) other than EAGAIN and EINTR.
    pub fn peek(self, buffer: &mut [u8]) -> Result<Option<usize>> {
        match kernel::receive(self.0, buffer, MSG_PEEK | MSG_DONTWAIT) {
            Ok(0) => Ok(None),
            Ok(n) => Ok(Some(n)),
            Err(Errno::EAGAIN | Errno::EINTR) => Ok(Some(0)),
            Err(error) => Err(error),
        }
    }

    /// Discards `len` received bytes that were peeked at. Returns whether all of them were there.
    pub fn discard(self, buffer: &mut [u8], len: usize) -> bool {
        let wanted = buffer.get_mut(..len);
        wanted.is_some_and(|wanted| kernel::receive(self.0, wanted, MSG_DONTWAIT) == Ok(len))
    }

    /// The receive timeout (SO_RCVTIMEO, socket(7)), which is the timeout of accept(2), in nanoseconds. `None` if there is none,
    /// and for a non-blocking socket.
    pub fn receive_timeout(self) -> Option<i64> {
        let [seconds, microseconds] = kernel::get_option(self.0, SOL_SOCKET, SO_RCVTIMEO).ok()?;
        let timeout = i64::saturating_mul(seconds, kernel::SECOND)
            .saturating_add(i64::saturating_mul(microseconds, 1000));
        (timeout > 0 && kernel::is_nonblocking(self.0) == Ok(false)).then_some(timeout)
    }

    /// Waits at most `milliseconds` until `bytes` bytes have been received, or the stream has ended (SO_RCVLOWAT,
    /// socket(7), which is set back to the program's own value).
    pub fn wait_received(self, bytes: usize, milliseconds: i64) {
        let bytes = c_int::try_from(bytes).unwrap_or(c_int::MAX);
        let before = kernel::get_option(self.0, SOL_SOCKET, SO_RCVLOWAT).unwrap_or(1_i32);
        let _ = kernel::set_option(self.0, SOL_SOCKET, SO_RCVLOWAT, bytes);
        kernel::wait_readable(self.0, milliseconds);
        let _ = kernel::set_option(self.0, SOL_SOCKET, SO_RCVLOWAT, before);
    }

    /// close(2).
    pub fn close(self) {
        kernel::close(self.0);
    }

    /// Closes with RST (SO_LINGER with zero seconds, socket(7)).
    pub fn reset(self) {
        let _ = kernel::set_option(self.0, SOL_SOCKET, SO_LINGER, [1_i32, 0]);
        self.close();
    }

    /// Defers a connection until its peer has sent data, so that accept(2) mostly finds the header (TCP_DEFER_ACCEPT,
    /// tcp(7)).
    pub fn defer_accept(self) {
        let _ = kernel::set_option(self.0, SOL_TCP, TCP_DEFER_ACCEPT, DEFER_SECONDS);
    }
}

/// The transport protocol of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// tcp(7).
    Tcp,
    /// MPTCP.
    Multipath,
}

/// The kernel rounds this up to retransmissions of the SYN-ACK, after which accept(2) returns the connection even without data.
/// A header that came with the handshake, or soon after it, has arrived by then.
const DEFER_SECONDS: c_int = 1;

const IPPROTO_TCP: c_int = 6;
const IPPROTO_MPTCP: c_int = 262;
const SOL_TCP: c_int = 6;
const TCP_DEFER_ACCEPT: c_int = 9;
const SO_LINGER: c_int = 13;
const SO_RCVLOWAT: c_int = 18;
const SO_RCVTIMEO: c_int = 20;
const SO_PROTOCOL: c_int = 38;
const SO_COOKIE: c_int = 57;
const SO_NETNS_COOKIE: c_int = 71;
