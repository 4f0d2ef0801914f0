//! Opens a connection with the header in its first segment (TCP Fast Open without a cookie).
//!
//! sendto(2) with MSG_FASTOPEN queues data before it connects. Usually the data is sent only with a cookie that the server
//! handed out in an earlier connection; with TCP_FASTOPEN_NO_COOKIE (tcp(7), since Linux 4.15) none is needed, and no Fast
//! Open option is sent. The header then travels with the SYN. A server that has not enabled Fast Open, as most have not,
//! ignores data in a SYN, and gets it again with the first ACK; a SYN that is lost, or dropped by a firewall for the data
//! in it, is retransmitted without data.
//!
//! A header written later would come too late: on a non-blocking socket it would follow data that the program writes by a
//! call that the library does not see, and it would not be sent at all if the program waits for the server to speak.

use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, Ordering};

use peername_preload_common::address::RawAddress;
use peername_preload_common::kernel::{self, Errno, MSG_DONTWAIT, MSG_NOSIGNAL};
use peername_preload_common::socket::Socket;

use crate::claim::{claim, log_debug};

/// The result of starting to connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectStart {
    /// No header is to be sent: not TCP, not one of the ports, or a connection that was opened before and has its header.
    /// The call goes to the C library unchanged.
    PassOn,
    /// The header is queued, and the connection is in progress or established.
    InProgress,
    /// The call failed, and no connection is in progress.
    Failed(Errno),
}

/// Starts to connect, with the header in the first segment. Never blocks.
pub(crate) fn start_connect(socket: Socket, to: &RawAddress) -> ConnectStart {
    let Some((claim, destination)) = claim().zip(to.socket_addr()) else {
        return ConnectStart::PassOn;
    };
    if !claim.covers(destination.port()) {
        return ConnectStart::PassOn;
    }
    if socket.protocol().is_none() {
        log_debug(NOT_TCP);
        return ConnectStart::PassOn;
    }
    match kernel::set_option(socket.0, SOL_TCP, TCP_FASTOPEN_NO_COOKIE, 1_i32) {
        Ok(()) => {}
        // The option can be set only before the connection is opened.
        Err(Errno::EINVAL) => return ConnectStart::PassOn,
        Err(_) => return unavailable(),
    }
    let header = claim.header(destination);
    let flags = MSG_FASTOPEN | MSG_DONTWAIT | MSG_NOSIGNAL;
    match kernel::send_to(socket.0, header.as_bytes(), flags, to) {
        Ok(n) if n == header.as_bytes().len() => ConnectStart::InProgress,
        // Short write: a segment is smaller than the header (TCP_MAXSEG, or the route's MTU).
        Ok(_) => disconnect(socket, Errno::EMSGSIZE),
        // The kernel had no memory for the header, and connects without it.
        Err(Errno::EINPROGRESS) => disconnect(socket, Errno::ENOBUFS),
        Err(Errno::EOPNOTSUPP) => unavailable(),
        Err(error) => ConnectStart::Failed(error),
    }
}

/// Aborts a connection that was opened without its header, or with part of it.
fn disconnect(socket: Socket, error: Errno) -> ConnectStart {
    // connect(2) to AF_UNSPEC, which is 0, disconnects.
    let _ = kernel::connect(socket.0, &[0; 16]);
    ConnectStart::Failed(error)
}

/// Reports once that the kernel can't send the header with the SYN.
fn unavailable() -> ConnectStart {
    static REPORTED: AtomicBool = AtomicBool::new(false);
    if !REPORTED.swap(true, Ordering::Relaxed) {
        kernel::write_stderr(
            "peername: the kernel can't begin a connection with a header: that takes Linux 4.15 and the \
             first bit of net.ipv4.tcp_fastopen (sysctl -w net.ipv4.tcp_fastopen=1); `peername jail` refuses it\n",
        );
    }
    ConnectStart::Failed(Errno::EOPNOTSUPP)
}

const NOT_TCP: &str = "error: proxy protocol not supported for socket type\n";
const SOL_TCP: c_int = 6;
const TCP_FASTOPEN_NO_COOKIE: c_int = 34;
pub(crate) const MSG_FASTOPEN: c_int = 0x2000_0000;
