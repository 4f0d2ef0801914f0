//! How a connection to the backend begins.

use std::time::{Duration, Instant};

use crate::addr::someone_v4;
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
        count(&rig);
        let client = someone_v4();
        let _down = rig.open(&[&header_of(client)[..], sent].concat());
        let up = rig.accept(client);
        if !args.is_empty() {
            assert_eq!(up.recv(5), b"PROXY");
        }
        if !sent.is_empty() {
            up.recv_text_until(|text| text.ends_with("hello"));
        }
        assert_eq!(counted(&rig), 0, "{args:?} {sent:?}");
    }
}

/// A server that speaks first learns of its client at once, not with a delayed ACK.
#[test]
fn a_silent_client_is_no_reason_to_wait() {
    let rig = Rig::new(&[]);
    count(&rig);
    for _ in 0..10 {
        let client = someone_v4();
        let down = rig.open(&header_of(client));
        let opened = Instant::now();
        let up = rig.accept(client);
        assert!(counted(&rig) > 0);
        assert!(opened.elapsed() < Duration::from_millis(40));
        up.send(b"220");
        assert_eq!(down.recv(3), b"220");
    }
}

/// Counts the segments to the backend that bring nothing but an ACK.
fn count(rig: &Rig) {
    rig.lab.server.nft(
        "table ip acks {
            chain in {
                type filter hook input priority filter
                tcp dport 9000 tcp flags & (syn | ack | psh) == ack ip length <= 52 counter
            }
        }",
    );
}

fn counted(rig: &Rig) -> u64 {
    let listed = rig.lab.server.run("nft", &["list", "table", "ip", "acks"]);
    let (_, count) = listed.split_once("counter packets ").expect("a counter");
    let (count, _) = count.split_once(' ').expect("a number");
    count.parse().expect("a number")
}
