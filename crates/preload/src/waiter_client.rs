//! The library's requests to the header waiter: parks connections with an incomplete header, and takes ready ones.
//!
//! Each request is one message on a socket of its own, which the supervisor adds to this process on request. No socket is kept
//! open, because a program may close or reuse any descriptor that it has not opened itself.

use core::ffi::c_int;

use peername_identity::{OPEN_CHANNEL, WaiterRequest};
use peername_preload_common::kernel::{
    self, Errno, MSG_CMSG_CLOEXEC, MSG_DONTWAIT, MSG_NOSIGNAL, Result, SOCK_CLOEXEC, SOCK_NONBLOCK,
};
use peername_preload_common::socket::Socket;

/// Parks a connection of this listener. The caller closes its own descriptor in either case.
///
/// # Errors
///
/// No supervisor is running (ENOSYS), it has no descriptor for the request now (EAGAIN), or this process has none
/// (EMFILE, ENFILE).
pub(crate) fn park(connection: Socket, listener: Socket) -> Result<()> {
    request(WaiterRequest::Park, &[connection.0, listener.0]).map(Socket::close)
}

/// Takes a ready connection of this listener, non-blocking and close-on-exec as the `flags` of accept4(2) say. `None` if there
/// is none, or the header waiter does not answer in time.
pub(crate) fn take(listener: Socket, flags: c_int) -> Result<Option<Socket>> {
    let waiter = request(WaiterRequest::Take, &[listener.0])?;
    let taken = receive(waiter, flags & SOCK_CLOEXEC != 0);
    waiter.close();
    let Some(connection) = taken else {
        return Ok(None);
    };
    // Setting the blocking mode fails for no open socket.
    let _ = kernel::set_nonblocking(connection.0, flags & SOCK_NONBLOCK != 0);
    Ok(Some(connection))
}

/// Reports that this socket listens now, and waits until the supervisor has closed its copy: until then the program could not
/// bind the port again. Without a header waiter nothing happens.
pub(crate) fn report_listening(listener: Socket) {
    if let Ok(waiter) = request(WaiterRequest::Listening, &[listener.0]) {
        kernel::wait_readable(waiter.0, ANSWER_TIMEOUT_MS);
        waiter.close();
    }
}

/// Sends a request that has no answer. Without a header waiter nothing happens.
pub(crate) fn notify(event: WaiterRequest) {
    let _ = request(event, &[]).map(Socket::close);
}

/// Receives the connection and acknowledges it. The header waiter keeps the connection until then, so that none is lost if
/// this process has no descriptor left.
fn receive(waiter: Socket, close_on_exec: bool) -> Option<Socket> {
    if !kernel::wait_readable(waiter.0, ANSWER_TIMEOUT_MS) {
        return None;
    }
    let flags = if close_on_exec { MSG_CMSG_CLOEXEC } else { 0 };
    let mut byte = [0; 1];
    let (_, connection) =
        kernel::receive_descriptor(waiter.0, &mut byte, flags | MSG_DONTWAIT).ok()?;
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

/// Sends a request with these descriptors on a new channel, which is returned for the answer.
fn request(request: WaiterRequest, descriptors: &[c_int]) -> Result<Socket> {
    let waiter = open_channel()?;
    match kernel::send_descriptors(waiter.0, &request.to_bytes(), descriptors) {
        Ok(_) => Ok(waiter),
        Err(error) => {
            waiter.close();
            Err(error)
        }
    }
}

fn open_channel() -> Result<Socket> {
    loop {
        match kernel::request_descriptor(OPEN_CHANNEL) {
            // The program's signal handler has run; without a handler the kernel restarts the call.
            Err(Errno::EINTR) => {}
            opened => return opened.map(Socket),
        }
    }
}

/// Timeout of an answer. The header waiter has just woken the listener, so it is running; this allows for an overloaded
/// machine. A connection that is not taken in time is offered again.
const ANSWER_TIMEOUT_MS: i64 = 250;
