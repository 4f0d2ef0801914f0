//! The first bytes of a connection to the backend: no delay, no duplicate.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use crate::harness::addr::{TARGET_V4, fresh_client_v4, v4};
use crate::harness::lab::{Lab, assert_within};
use crate::harness::peername::{Peername, words};
use crate::harness::rig::proxy::header_for;

/// A client or backend that begins with small writes is not delayed by Nagle's algorithm, which holds back a small write until
/// the one before it is acknowledged. And each byte arrives once, whichever stage of the proxy sent it.
#[test]
fn first_bytes_in_pieces_are_not_delayed() {
    let lab = Lab::without_routes();
    let backend = lab.balancer.enter(|| TcpListener::bind(TARGET_V4));
    let backend = backend.expect("a listener");
    let (listen, target) = (
        format!("--listen={LISTEN}"),
        format!("--target-v4={TARGET_V4}"),
    );
    let line = format!("proxy --setup-routes --trust=loopback {listen} {target}");
    let usual = words(&line);
    let header = &header_for(fresh_client_v4())[..];
    let segmentations = [
        &[header, b"asked"][..],
        &[&header[..20], &header[20..], b"asked"],
        &[&[header, b"as"].concat(), b"ked"],
        &[&[header, b"asked"].concat()],
    ];
    for (args, expected) in [
        (&[][..], &b"asked"[..]),
        (&["--send-proxy=v2"], &[header, b"asked"].concat()),
    ] {
        let _proxy = Peername::start(&lab.balancer, &[&usual[..], args].concat(), &[LISTEN]);
        for pieces in segmentations {
            exchange(&lab, &backend, pieces, expected);
        }
    }
}

/// Sends a request in these pieces; asserts that the backend receives `expected`, and that its answer in two pieces arrives.
fn exchange(lab: &Lab, backend: &TcpListener, pieces: &[&[u8]], expected: &[u8]) {
    // A delayed ACK would add 40 ms to each exchange.
    assert_within(10, Duration::from_millis(40), || {
        let start = Instant::now();
        let down = lab.balancer.enter(|| TcpStream::connect(LISTEN));
        let mut down = down.expect("a connection");
        for piece in pieces {
            down.write_all(piece).expect("write");
        }
        let (mut up, _) = backend.accept().expect("a connection");
        let mut request = vec![0; expected.len()];
        up.read_exact(&mut request).expect("the request");
        assert_eq!(
            request.escape_ascii().to_string(),
            expected.escape_ascii().to_string()
        );
        for piece in [b"head", b"body"] {
            up.write_all(piece).expect("write");
        }
        down.read_exact(&mut [0; 8]).expect("the answer");
        let elapsed = start.elapsed();
        down.shutdown(Shutdown::Write).expect("FIN");
        let mut more = Vec::new();
        up.read_to_end(&mut more).expect("the end");
        assert!(more.is_empty(), "sent twice: {more:?}");
        elapsed
    });
}

const LISTEN: SocketAddr = v4([127, 0, 0, 1], 8443);
