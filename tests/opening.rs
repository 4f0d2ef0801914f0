//! How a connection to the backend begins.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use crate::addr::{TARGET_V4, someone_v4, v4};
use crate::lab::{Host, Lab};
use crate::peername::Peername;
use crate::rig::{Rig, header_of};

/// What is there already goes with the handshake's last ACK: a segment less, and the server is woken once.
#[test]
fn what_is_there_goes_with_the_handshake() {
    for (args, sent) in [
        (&[][..], &b"hello"[..]),
        (&["--send-proxy=v1"], b"hello"),
        (&["--send-proxy=v1"], b""),
    ] {
        let rig = Rig::new(args);
        count(&rig.lab.server, "tcp dport 9000");
        let client = someone_v4();
        let _down = rig.open(&[&header_of(client)[..], sent].concat());
        let up = rig.accept(client);
        if !args.is_empty() {
            assert_eq!(up.recv(5), b"PROXY");
        }
        if !sent.is_empty() {
            up.recv_text_until(|text| text.ends_with("hello"));
        }
        assert_eq!(counted(&rig.lab.server), 0, "{args:?} {sent:?}");
    }
}

/// A server that speaks first learns of its client at once, not with a delayed ACK.
#[test]
fn a_silent_client_is_no_reason_to_wait() {
    let rig = Rig::new(&[]);
    count(&rig.lab.server, "tcp dport 9000");
    for _ in 0..10 {
        let client = someone_v4();
        let down = rig.open(&header_of(client));
        let opened = Instant::now();
        let up = rig.accept(client);
        assert!(counted(&rig.lab.server) > 0);
        assert!(opened.elapsed() < Duration::from_millis(40));
        up.send(b"220");
        assert_eq!(down.recv(3), b"220");
    }
}

/// Nagle's algorithm holds back a second small write until the first has been acknowledged. Nobody is kept waiting for
/// that at the beginning, whoever writes in pieces.
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
            began.elapsed()
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

/// Counts the segments that bring nothing but an ACK.
fn count(host: &Host, which: &str) {
    host.nft(&format!(
        "table ip acks {{
            chain in {{
                type filter hook input priority filter
                {which} tcp flags & (syn | ack | psh | fin) == ack ip length <= 52 counter
            }}
        }}"
    ));
}

fn counted(host: &Host) -> u64 {
    let listed = host.run("nft", &["list", "table", "ip", "acks"]);
    let (_, count) = listed.split_once("counter packets ").expect("a counter");
    let (count, _) = count.split_once(' ').expect("a number");
    count.parse().expect("a number")
}

const LISTEN: SocketAddr = v4([127, 0, 0, 1], 8443);
