//! The library's requests to the header waiter: parks connections with an incomplete header, and takes ready ones.
//!
//! Each request is one message on a connection of its own. No connection is kept open, because a program may close or
//! reuse any descriptor that it has not opened itself.

use core::ffi::c_int;
use core::net::SocketAddr;

use peername_identity::{Settings, WaiterAction, WaiterRequest};
use peername_preload_common::kernel::{
    self, Errno, MSG_CMSG_CLOEXEC, MSG_DONTWAIT, MSG_NOSIGNAL, Result, SOCK_CLOEXEC, SOCK_NONBLOCK,
    SOCK_SEQPACKET,
};
use peername_preload_common::socket::Socket;

/// Parks a connection. The caller closes its own descriptor in either case.
///
/// # Errors
///
/// No header waiter is running (ECONNREFUSED), it does not take the request now, or there is no descriptor left.
pub(crate) fn park(settings: Settings<'_>, connection: Socket, listener: SocketAddr) -> Result<()> {
    let waiter = call(settings)?;
    let request = request(settings, WaiterAction::Park { listener });
    let sent = kernel::send_descriptor(waiter.0, &request, connection.0);
    waiter.close();
    sent.map(drop)
}

/// Takes a ready connection of this listener, blocking or not and to be closed by exec(3) as accept4(2)'s
/// `flags` say. `None` if there is none, or the header waiter does not answer in time.
///
/// # Errors
///
/// The header waiter can't be reached, or there is no descriptor left (EMFILE, ENFILE).
pub(crate) fn take(
    settings: Settings<'_>,
    listener: SocketAddr,
    flags: c_int,
) -> Result<Option<Socket>> {
    let waiter = call(settings)?;
    let request = request(settings, WaiterAction::Take { listener });
    let taken = kernel::send(waiter.0, &request, MSG_NOSIGNAL)
        .map(|_| receive(waiter, flags & SOCK_CLOEXEC != 0));
    waiter.close();
    let Some(connection) = taken? else {
        return Ok(None);
    };
    // Setting the blocking mode fails for no open socket.
    let _ = kernel::set_nonblocking(connection.0, flags & SOCK_NONBLOCK != 0);
    Ok(Some(connection))
}

/// Sends a request that has no answer. Without a header waiter nothing happens.
pub(crate) fn notify(settings: Settings<'_>, action: WaiterAction) {
    if let Ok(waiter) = call(settings) {
        let request = request(settings, action);
        let _ = kernel::send(waiter.0, &request, MSG_NOSIGNAL);
        waiter.close();
    }
}

/// Receives the connection and acknowledges it. The header waiter keeps the connection until then, so that none is lost if
/// this process has no descriptor left.
fn receive(waiter: Socket, close_on_exec: bool) -> Option<Socket> {
    if !kernel::wait_readable(waiter.0, ANSWER_TIMEOUT_MS) {
        return None;
    }
    let flags = if close_on_exec { MSG_CMSG_CLOEXEC } else { 0 };
    let mut word = [0; 1];
    let (_, connection) =
        kernel::receive_descriptor(waiter.0, &mut word, flags | MSG_DONTWAIT).ok()?;
    let connection = Socket(connection?);
    match kernel::send(waiter.0, b"!", MSG_NOSIGNAL) {
        Ok(_) => Some(connection),
        // The header waiter hands the connection to another call.
        Err(_) => {
            connection.close();
            None
        }
    }
}

/// Connects to the header waiter, but not to another user's process that has bound its name since it exited.
fn call(settings: Settings<'_>) -> Result<Socket> {
    let kind = SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC;
    let socket = Socket(kernel::socket(AF_UNIX, kind, 0)?);
    let connected = kernel::connect(socket.0, &address(settings));
    let user = settings.policy().waiter_user;
    let theirs = connected.and_then(|()| match socket.peer_user() {
        Some(theirs) if theirs == user => Ok(socket),
        _ => Err(Errno::ACCES),
    });
    if theirs.is_err() {
        socket.close();
    }
    theirs
}

/// `struct sockaddr_un` with an abstract name (unix(7)).
fn address(settings: Settings<'_>) -> [u8; 2 + 1 + 16] {
    let [first, second] = settings.name().map(u64::to_ne_bytes);
    let family = (AF_UNIX as u16).to_ne_bytes();
    let parts: [&[u8]; 4] = [&family, &[0], &first, &second];
    let mut address = [0; 19];
    let bytes = parts.into_iter().flatten();
    for (to, from) in address.iter_mut().zip(bytes) {
        *to = *from;
    }
    address
}

fn request(settings: Settings<'_>, action: WaiterAction) -> [u8; WaiterRequest::LEN] {
    let secret = settings.secret();
    WaiterRequest { secret, action }.to_bytes()
}

const AF_UNIX: c_int = 1;
/// Timeout of an answer. The header waiter has just woken the listener, so it is running; this allows for an overloaded
/// machine. A connection that is not taken in time is offered again.
const ANSWER_TIMEOUT_MS: i64 = 250;
