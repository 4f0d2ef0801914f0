//! Check services with one fault each, written by hand.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use super::h2::{self, frame};
use super::service::any_loopback;

/// A fault, and what a service that has it does with each connection.
pub(crate) struct Fault {
    pub(crate) name: &'static str,
    handle: Arc<dyn Fn(TcpStream) + Send + Sync>,
}

impl Fault {
    pub(crate) fn new(
        name: &'static str,
        handle: impl Fn(TcpStream) + Send + Sync + 'static,
    ) -> Self {
        let handle = Arc::new(handle);
        Self { name, handle }
    }

    /// A service that answers a request with these bytes, and closes.
    pub(crate) fn answers(name: &'static str, bytes: &[u8]) -> Self {
        let bytes = bytes.to_vec();
        Self::new(name, move |stream| answer_bytes(&stream, &bytes))
    }

    /// A service that answers a request with 200 and this body.
    pub(crate) fn ok_with(name: &'static str, body: &[u8]) -> Self {
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
        Self::answers(name, &[head.as_bytes(), body].concat())
    }

    /// A service that answers a request with a gRPC message and a status.
    pub(crate) fn grpc_answer(name: &'static str, message: &[u8], status: &[u8]) -> Self {
        let length = u8::try_from(message.len()).expect("short");
        Self::grpc_data(name, &[&[0, 0, 0, 0, length], message].concat(), status)
    }

    /// A service that answers a request with these DATA bytes (gRPC messages with their prefixes) and a status.
    pub(crate) fn grpc_data(name: &'static str, data: &[u8], status: &[u8]) -> Self {
        let frames = [frame(h2::DATA, 0, 1, data), h2::trailers(status)];
        Self::new(name, move |stream| {
            h2::begin_response(&stream);
            write_frames(&stream, &frames);
        })
    }

    /// A service that announces a body of a GiB, and sends as much of it as the client reads.
    pub(crate) fn http_gibibyte() -> Self {
        Self::new("a GiB", |stream| {
            let first = b"HTTP/1.1 200 OK\r\nContent-Length: 1073741824\r\n\r\n";
            write_endlessly(&stream, first, &[b'x'; 65536]);
        })
    }

    /// A service that announces a gRPC message of a GiB, and sends as much of it as the client reads.
    pub(crate) fn grpc_gibibyte() -> Self {
        Self::new("a GiB", |stream| {
            h2::begin_response(&stream);
            // The flag for no compression, then the length.
            let prefix = [0, 0x40, 0, 0, 0];
            write_frames(&stream, &[frame(h2::DATA, 0, 1, &prefix)]);
            write_forever(&stream, &frame(h2::DATA, 0, 1, &[0; 16384]));
        })
    }

    /// Serves every connection with the fault until the process ends; returns the address.
    pub(crate) fn serve(&self) -> SocketAddr {
        let listener = TcpListener::bind(any_loopback()).expect("bind");
        let address = listener.local_addr().expect("its address");
        let handle = self.handle.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let handle = handle.clone();
                thread::spawn(move || handle(stream));
            }
        });
        address
    }
}

/// Answers a request with these bytes.
pub(crate) fn answer_bytes(mut stream: &TcpStream, bytes: &[u8]) {
    h2::read_some(stream);
    let _ = stream.write_all(bytes);
}

/// Writes these frames, and reads what the client has sent meanwhile.
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

pub(crate) fn write_forever(mut stream: &TcpStream, bytes: &[u8]) {
    let chunk = bytes.repeat(65536_usize.div_ceil(bytes.len()));
    while stream.write_all(&chunk).is_ok() {}
}

/// Reads until the other side closes.
pub(crate) fn hold_open(mut stream: &TcpStream) {
    let _ = stream.set_read_timeout(Some(Duration::from_secs(30)));
    while stream.read(&mut [0; 4096]).is_ok_and(|read| read > 0) {}
}

pub(crate) fn close_with_reset(stream: TcpStream) {
    let _ = socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO));
}
