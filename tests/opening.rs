//! How a connection to the backend begins.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::addr::{TARGET_V4, someone_v4, v4};
use crate::backend::Backend;
use crate::conn::Conn;
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

/// On loopback the answer acknowledges a header and what came with it, not a segment of its own.
#[test]
fn the_answer_acknowledges_what_it_answers() {
    let (lab, backend, _proxy) = on_loopback();
    count(&lab.balancer, "tcp sport 8443");
    // A closed one would have its FIN acknowledged.
    let mut open = Vec::new();
    for _ in 0..5 {
        let client = someone_v4();
        let down = Conn::open(
            &lab.balancer,
            LISTEN,
            &[&header_of(client), &b"ask"[..]].concat(),
        );
        let up = backend.accept();
        assert_eq!((up.peer(), up.recv(3)), (client, b"ask".to_vec()));
        up.send(b"answer");
        assert_eq!(down.recv(6), b"answer");
        open.push((down, up));
    }
    assert_eq!(counted(&lab.balancer), 0);
}

/// Nagle's algorithm holds back a second small write until the first has been acknowledged: what is no reason for an
/// answer is acknowledged at once.
#[test]
fn a_sender_that_writes_in_pieces_is_not_kept_waiting() {
    let (lab, backend, _proxy) = on_loopback();
    for cut in [0, 20] {
        let waits = (0..10).map(|_| {
            let client = someone_v4();
            let header = header_of(client);
            let mut down = lab
                .balancer
                .enter(|| TcpStream::connect(LISTEN).expect("a connection"));
            let began = Instant::now();
            for piece in [&header[..cut], &header[cut..], b"x"] {
                down.write_all(piece).expect("write");
            }
            let up = backend.accept();
            assert_eq!((up.peer(), up.recv(1)), (client, b"x".to_vec()));
            began.elapsed()
        });
        // Later than that, each of them would be.
        assert!(
            waits.min() < Some(Duration::from_millis(40)),
            "cut at {cut}"
        );
    }
}

/// Sender, proxy and backend on one host.
fn on_loopback() -> (Lab, Backend, Peername) {
    let lab = Lab::without_routes();
    let backend = Backend::listen(&lab.balancer, TARGET_V4);
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
    let proxy = Peername::start(&lab.balancer, &args, &[LISTEN]);
    (lab, backend, proxy)
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
