//! How a connection begins.
//!
//! Data that is given to sendto(2) with MSG_FASTOPEN is put into the stream before the connection is made,
//! and connect(2) is part of the call. Usually that waits for a cookie that the server has handed out in
//! an earlier connection; with TCP_FASTOPEN_NO_COOKIE (tcp(7), since Linux 4.15) it does not, and no Fast Open
//! option is sent. The header then travels with the SYN. A server that has not been set up for that, as
//! few are, ignores data in a SYN, and gets it again with the first ACK; a SYN that is lost, or kept by a
//! firewall for the data in it, is repeated without.
//!
//! Nothing later can do: where connect(2) does not wait, a header written by us would come after whatever
//! is written by a call that we don't see, and not at all if the program waits for the server to speak.

use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, Ordering};

use peername_preload_common::address::RawAddress;
use peername_preload_common::kernel::{self, Errno, MSG_DONTWAIT, MSG_NOSIGNAL};
use peername_preload_common::socket::Socket;

use crate::claim::{claim, debug};

/// What has become of a action to connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Begun {
    /// It is as if we were not there: no TCP, not one of the ports, or a connection that has begun
    /// before and has its header.
    NotOurs,
    /// The header is in the stream and the connection is being made, or is there.
    UnderWay,
    /// None is being made.
    Failed(Errno),
}

/// Begins a connection with the header. Never waits.
pub(crate) fn begin(socket: Socket, to: &RawAddress) -> Begun {
    let Some((claim, destination)) = claim().zip(to.internet()) else {
        return Begun::NotOurs;
    };
    if !claim.covers(destination.port()) {
        return Begun::NotOurs;
    }
    if socket.protocol().is_none() {
        debug(NO_HEADER_HERE);
        return Begun::NotOurs;
    }
    match kernel::set_option(socket.0, SOL_TCP, TCP_FASTOPEN_NO_COOKIE, 1_i32) {
        Ok(()) => {}
        // Only before there is a connection, or the beginning of one.
        Err(Errno::INVAL) => return Begun::NotOurs,
        Err(_) => return unavailable(),
    }
    let header = claim.header(destination);
    let flags = MSG_FASTOPEN | MSG_DONTWAIT | MSG_NOSIGNAL;
    match kernel::send_to(socket.0, header.as_bytes(), flags, to) {
        Ok(n) if n == header.as_bytes().len() => Begun::UnderWay,
        // A segment has less room than the header (TCP_MAXSEG, or the route's MTU).
        Ok(_) => take_back(socket, Errno::MSGSIZE),
        // The kernel had no memory for it, and went on without.
        Err(Errno::INPROGRESS) => take_back(socket, Errno::NOBUFS),
        Err(Errno::OPNOTSUPP) => unavailable(),
        Err(error) => Begun::Failed(error),
    }
}

/// Ends a connection that has begun without its header, or with part of it.
fn take_back(socket: Socket, why: Errno) -> Begun {
    // AF_UNSPEC undoes connect(2).
    let _ = kernel::connect(socket.0, &[0; 16]);
    Begun::Failed(why)
}

fn unavailable() -> Begun {
    static SAID: AtomicBool = AtomicBool::new(false);
    if !SAID.swap(true, Ordering::Relaxed) {
        kernel::complain(
            "peername: the kernel can't begin a connection with a header: that takes Linux 4.15 and the \
             first bit of net.ipv4.tcp_fastopen (sysctl -w net.ipv4.tcp_fastopen=1)\n",
        );
    }
    Begun::Failed(Errno::OPNOTSUPP)
}

const NO_HEADER_HERE: &str = "error: proxy protocol not supported for socket type\n";
const SOL_TCP: c_int = 6;
const TCP_FASTOPEN_NO_COOKIE: c_int = 34;
pub(crate) const MSG_FASTOPEN: c_int = 0x2000_0000;
