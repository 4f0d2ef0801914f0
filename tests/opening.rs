//! How a connection to the backend begins.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use crate::addr::{TARGET_V4, someone_v4, v4};
use crate::lab::Lab;
use crate::peername::Peername;
use crate::rig::header_of;

/// Nagle's algorithm holds back a second small write until the first has been acknowledged. Nobody is kept waiting for
/// that at the beginning, whoever writes in pieces; and what is said arrives once, whichever stage sent it.
#[test]
fn who_writes_in_pieces_is_not_kept_waiting() {
    let lab = Lab::without_routes();
    let backend = lab.balancer.enter(|| TcpListener::bind(TARGET_V4));
    let backend = backend.expect("a listener");
    let (listen, target) = (
        format!("--listen={LISTEN}"),
        format!("--target-v4={TARGET_V4}"),
    );
    let args = [
        "proxy",
        "--setup-routes",
        "--trust=loopback",
        &listen,
        &target,
    ];
    let _proxy = Peername::start(&lab.balancer, &args, &[LISTEN]);
    let header = &header_of(someone_v4())[..];
    for asked in [
        &[header, b"asked"][..],
        &[&header[..20], &header[20..], b"asked"],
        &[&[header, b"as"].concat(), b"ked"],
        &[&[header, b"asked"].concat()],
    ] {
        let waits = (0..10).map(|_| {
            let began = Instant::now();
            let down = lab
                .balancer
                .enter(|| TcpStream::connect(LISTEN))
                .expect("a connection");
            asked
                .iter()
                .for_each(|piece| (&down).write_all(piece).expect("write"));
            let (mut up, _) = backend.accept().expect("a connection");
            up.read_exact(&mut [0; 5]).expect("what was asked");
            for piece in [b"head", b"body"] {
                up.write_all(piece).expect("write");
            }
            (&down).read_exact(&mut [0; 8]).expect("the answer");
            let took = began.elapsed();
            down.shutdown(Shutdown::Write).expect("FIN");
            let mut more = Vec::new();
            up.read_to_end(&mut more).expect("the end");
            assert!(more.is_empty(), "said twice: {more:?}");
            took
        });
        // A delayed ACK would take that from each of them.
        let least = waits.min();
        assert!(
            least < Some(Duration::from_millis(40)),
            "{least:?}, {} pieces",
            asked.len()
        );
    }
}

const LISTEN: SocketAddr = v4([127, 0, 0, 1], 8443);
