//! HTTP/2 frames by hand (RFC 9113 §4.1), for services that no library would write.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

/// A frame: a header of nine bytes and a payload.
pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("short").to_be_bytes();
    let mut bytes = length[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// A literal header field that is not added to the dynamic table (RFC 7541 §6.2.2).
pub(crate) fn header_field(name: &[u8], value: &[u8]) -> Vec<u8> {
    let length = |text: &[u8]| u8::try_from(text.len()).expect("short");
    [&[0, length(name)], name, &[length(value)], value].concat()
}

/// Accepts a request, and answers its stream with response headers.
pub(crate) fn begin_response(mut stream: &TcpStream) {
    accept_request(stream);
    let head = [
        &[STATUS_200][..],
        &header_field(b"content-type", b"application/grpc"),
    ]
    .concat();
    let _ = stream.write_all(&frame(HEADERS, END_HEADERS, 1, &head));
}

/// Exchanges settings, and waits until a whole request has come.
pub(crate) fn accept_request(mut stream: &TcpStream) {
    let _ = stream.write_all(&frame(SETTINGS, 0, 0, &[]));
    let _ = stream.write_all(&frame(SETTINGS, ACK, 0, &[]));
    // A response before its request would be a protocol error.
    let mut received = Vec::new();
    let mut buffer = [0; 16384];
    while !is_request_whole(&received) {
        match stream.read(&mut buffer) {
            Ok(read @ 1..) => received.extend(&buffer[..read]),
            _ => return,
        }
    }
}

/// Whether the client has sent its preface (RFC 9113 §3.4) and a whole request. Bytes that differ from the preface are another
/// protocol and count as a whole request.
fn is_request_whole(received: &[u8]) -> bool {
    let start = received.get(..PREFACE_START.len()).unwrap_or(received);
    if !PREFACE_START.starts_with(start) {
        return true;
    }
    let mut rest = received.get(PREFACE_LEN..).unwrap_or_default();
    while let Some((&[a, b, c, kind, flags, ..], _)) = rest.split_at_checked(FRAME_HEADER_LEN) {
        let length = u32::from_be_bytes([0, a, b, c]) as usize;
        let Some(next) = rest.get(FRAME_HEADER_LEN + length..) else {
            return false;
        };
        if [DATA, HEADERS].contains(&kind) && flags & END_STREAM != 0 {
            return true;
        }
        rest = next;
    }
    false
}

/// Reads once, and discards the bytes.
pub(crate) fn read_some(mut stream: &TcpStream) {
    let _ = stream.read(&mut [0; 16384]);
}

/// The trailers that end a response: a gRPC status.
pub(crate) fn trailers(status: &[u8]) -> Vec<u8> {
    frame(
        HEADERS,
        END_HEADERS | END_STREAM,
        1,
        &header_field(b"grpc-status", status),
    )
}

const PREFACE_LEN: usize = 24;
const PREFACE_START: &[u8] = b"PRI";
const FRAME_HEADER_LEN: usize = 9;

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const CONTINUATION: u8 = 9;
pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;
const ACK: u8 = 1;
/// `:status: 200`, by its index in the static table (RFC 7541 §6.1, appendix A).
pub(crate) const STATUS_200: u8 = 0x88;

#[test]
fn start_of_the_preface_is_not_another_protocol() {
    for start in [&b""[..], b"P", b"PR", b"PRI", b"PRI * HTTP"] {
        assert!(!is_request_whole(start), "{start:?}");
    }
    for other in [&b"G"[..], b"PO", b"\x16\x03\x01"] {
        assert!(is_request_whole(other), "{other:?}");
    }
}
