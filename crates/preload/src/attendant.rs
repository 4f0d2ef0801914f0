//! Handing connections with an unfinished header over to the attendant, and taking finished ones.
//!
//! Each is one connection to its socket and one message. Nothing is kept open between: a program may
//! close or reuse any descriptor that it has not opened itself.

use core::ffi::c_int;
use core::net::SocketAddr;

use peername_identity::{Request, Settings, Wish};
use peername_preload_common::kernel::{
    self, Errno, MSG_CMSG_CLOEXEC, MSG_DONTWAIT, MSG_NOSIGNAL, Result, SOCK_CLOEXEC, SOCK_NONBLOCK,
    SOCK_SEQPACKET,
};
use peername_preload_common::socket::Socket;

/// Hands a connection over. The caller closes its own descriptor either way.
pub(crate) fn park(settings: Settings<'_>, connection: Socket, listener: SocketAddr) -> Result<()> {
    let attendant = call(settings)?;
    let request = request(settings, Wish::Park { listener });
    let sent = kernel::send_descriptor(attendant.0, &request, connection.0);
    attendant.close();
    sent.map(drop)
}

/// Takes a connection of this listener, blocking or not and to be closed by exec(3) as accept4(2)'s
/// `flags` say. `None` if there is none, or the attendant does not answer in time.
pub(crate) fn take(
    settings: Settings<'_>,
    listener: SocketAddr,
    flags: c_int,
) -> Result<Option<Socket>> {
    let attendant = call(settings)?;
    let request = request(settings, Wish::Take { listener });
    let taken = kernel::send(attendant.0, &request, MSG_NOSIGNAL)
        .map(|_| answer(attendant, flags & SOCK_CLOEXEC != 0));
    attendant.close();
    let Some(connection) = taken? else {
        return Ok(None);
    };
    // This fails for no socket.
    let _ = kernel::set_nonblocking(connection.0, flags & SOCK_NONBLOCK != 0);
    Ok(Some(connection))
}

/// Asks for something that has no answer. Where nobody listens any more, nothing happens.
pub(crate) fn tell(settings: Settings<'_>, wish: Wish) {
    if let Ok(attendant) = call(settings) {
        let request = request(settings, wish);
        let _ = kernel::send(attendant.0, &request, MSG_NOSIGNAL);
        attendant.close();
    }
}

/// The attendant keeps the connection until it hears that it has arrived, so that none is lost when
/// there is no descriptor left for it here.
fn answer(attendant: Socket, close_on_exec: bool) -> Option<Socket> {
    if !kernel::wait_readable(attendant.0, PATIENCE_MS) {
        return None;
    }
    let flags = if close_on_exec { MSG_CMSG_CLOEXEC } else { 0 };
    let mut word = [0; 1];
    let (_, connection) =
        kernel::receive_descriptor(attendant.0, &mut word, flags | MSG_DONTWAIT).ok()?;
    let connection = Socket(connection?);
    match kernel::send(attendant.0, b"!", MSG_NOSIGNAL) {
        Ok(_) => Some(connection),
        // It will be given to somebody else.
        Err(_) => {
            connection.close();
            None
        }
    }
}

/// Connects to the attendant, and to nobody who has taken its name since it ended.
fn call(settings: Settings<'_>) -> Result<Socket> {
    let kind = SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC;
    let socket = Socket(kernel::socket(AF_UNIX, kind, 0)?);
    let connected = kernel::connect(socket.0, &address(settings));
    let user = settings.policy().attendant_user;
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
    let octets = parts.into_iter().flatten();
    for (to, from) in address.iter_mut().zip(octets) {
        *to = *from;
    }
    address
}

fn request(settings: Settings<'_>, wish: Wish) -> [u8; Request::LEN] {
    let secret = settings.secret();
    Request { secret, wish }.to_bytes()
}

const AF_UNIX: c_int = 1;
/// The attendant has rung the bell itself a moment ago, so it is there; this is for a machine that is
/// out of breath. What is not taken in time is offered again.
const PATIENCE_MS: i64 = 250;
