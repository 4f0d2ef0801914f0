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
    serve: Arc<dyn Fn(TcpStream) + Send + Sync>,
}

impl Fault {
    pub(crate) fn new(
        name: &'static str,
        serve: impl Fn(TcpStream) + Send + Sync + 'static,
    ) -> Self {
        let serve = Arc::new(serve);
        Self { name, serve }
    }

    /// Answers a request with these bytes, and closes.
    pub(crate) fn answers(name: &'static str, bytes: &[u8]) -> Self {
        let bytes = bytes.to_vec();
        Self::new(name, move |stream| answer_bytes(&stream, &bytes))
    }

    /// Answers a request with 200 and this body.
    pub(crate) fn ok_with(name: &'static str, body: &[u8]) -> Self {
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
        Self::answers(name, &[head.as_bytes(), body].concat())
    }

    /// Answers a request with a gRPC message and a status.
    pub(crate) fn grpc_answer(name: &'static str, message: &[u8], status: &[u8]) -> Self {
        let length = u8::try_from(message.len()).expect("short");
        Self::grpc_data(name, &[&[0, 0, 0, 0, length], message].concat(), status)
    }

    /// Answers a request with these bytes of gRPC messages and a status.
    pub(crate) fn grpc_data(name: &'static str, data: &[u8], status: &[u8]) -> Self {
        let frames = [frame(h2::DATA, 0, 1, data), h2::trailers(status)];
        Self::new(name, move |stream| {
            h2::begin_response(&stream);
            write_frames(&stream, &frames);
        })
    }

    /// Announces a GiB, and sends as much of it as the client reads.
    pub(crate) fn http_gibibyte() -> Self {
        Self::new("a GiB", |stream| {
            let first = b"HTTP/1.1 200 OK\r\nContent-Length: 1073741824\r\n\r\n";
            write_endlessly(&stream, first, &[b'x'; 65536]);
        })
    }

    /// The same as a gRPC message.
    pub(crate) fn grpc_gibibyte() -> Self {
        Self::new("a GiB", |stream| {
            h2::begin_response(&stream);
            write_frames(&stream, &[frame(h2::DATA, 0, 1, &[0, 0x40, 0, 0, 0])]);
            write_forever(&stream, &frame(h2::DATA, 0, 1, &[0; 16384]));
        })
    }

    /// Serves every connection with the fault until the process ends.
    pub(crate) fn serve(&self) -> SocketAddr {
        let listener = TcpListener::bind(any_loopback()).expect("bind");
        let address = listener.local_addr().expect("its address");
        let serve = self.serve.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let serve = serve.clone();
                thread::spawn(move || serve(stream));
            }
        });
        address
    }
}

/// Answers a request with these bytes.
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
