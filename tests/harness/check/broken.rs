//! Check services with one fault each, written by hand.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use super::h2::{self, frame};

/// A name of the fault, and what the service does with each connection.
pub(crate) type Fault = (&'static str, fn(TcpStream));

/// Serves every connection with `fault` until the process ends.
pub(crate) fn serve_fault(address: SocketAddr, fault: fn(TcpStream)) -> SocketAddr {
    let listener = TcpListener::bind(address).expect("bind");
    let address = listener.local_addr().expect("its address");
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || fault(stream));
        }
    });
    address
}

/// Answers a request with these bytes, and closes.
pub(crate) fn answer_bytes(mut stream: &TcpStream, what: &[u8]) {
    h2::read_some(stream);
    let _ = stream.write_all(what);
}

pub(crate) fn write_frames(mut stream: &TcpStream, frames: &[Vec<u8>]) {
    let _ = stream.write_all(&frames.concat());
    // Closing a socket with unread data sends RST, which discards what was sent.
    thread::sleep(Duration::from_millis(20));
    h2::read_some(stream);
}

/// Answers a request with `first`, then repeats `then` for ever.
pub(crate) fn write_endlessly(mut stream: &TcpStream, first: &[u8], then: &[u8]) {
    h2::read_some(stream);
    let _ = stream.write_all(first);
    write_forever(stream, then);
}

pub(crate) fn write_forever(mut stream: &TcpStream, what: &[u8]) {
    let many = what.repeat(65536_usize.div_ceil(what.len()));
    while stream.write_all(&many).is_ok() {}
}

/// Reads until the other side closes.
pub(crate) fn hold_open(mut stream: &TcpStream) {
    let _ = stream.set_read_timeout(Some(Duration::from_secs(30)));
    while stream.read(&mut [0; 4096]).is_ok_and(|read| read > 0) {}
}

pub(crate) fn close_with_reset(stream: TcpStream) {
    let _ = socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO));
}

/// A CheckResponse with an empty status, which allows.
pub(crate) const CHECK_RESPONSE_OK: &[u8] = &[0, 0, 0, 0, 2, 0x0a, 0];

/// Announces a GiB, and sends as much of it as the client reads.
pub(crate) const HTTP_GIBIBYTE: Fault = ("a GiB", |stream| {
    let first = b"HTTP/1.1 200 OK\r\nContent-Length: 1073741824\r\n\r\n";
    write_endlessly(&stream, first, &[b'x'; 65536]);
});

/// The same as a gRPC message.
pub(crate) const GRPC_GIBIBYTE: Fault = ("a GiB", |stream| {
    h2::begin_response(&stream);
    write_frames(&stream, &[frame(h2::DATA, 0, 1, &[0, 0x40, 0, 0, 0])]);
    write_forever(&stream, &frame(h2::DATA, 0, 1, &[0; 16384]));
});
