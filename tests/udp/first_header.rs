//! `--udp-header=first`: the balancer's address and port stand for the client after one header.

use std::time::Duration;

use crate::harness::addr::{LISTEN_V4, someone_v4};
use crate::harness::header_bytes;
use crate::harness::rig::udp::{Rig, header_of};

/// Cloudflare Spectrum sends the header alone, ahead of the data.
#[test]
fn a_header_alone_is_not_forwarded() {
    let mut rig = Rig::new(&["--udp-header=first"]);
    let client = someone_v4();
    rig.send(&[&header_of(client)]);
    rig.send(&[b"hello"]);
    rig.v4.expect(b"hello", client);
    // An empty datagram of the client's is data.
    rig.send(&[]);
    rig.v4.expect(b"", client);
    let dropped = rig.dropped();
    assert_eq!(
        dropped.into_iter().collect::<Vec<_>>(),
        [("header_only".to_owned(), 1)]
    );
}

/// A balancer gives a port to another client when the one before has gone.
#[test]
fn a_new_header_replaces_the_client() {
    let rig = Rig::new(&["--udp-header=first"]);
    for client in [someone_v4(), someone_v4()] {
        rig.send(&[&header_of(client), b"first"]);
        rig.v4.expect(b"first", client);
        rig.send(&[b"second"]);
        rig.v4.expect(b"second", client);
        rig.v4.send(client, &[b"answer"]);
        rig.balancer.expect(b"answer", LISTEN_V4);
    }
}

/// A client is where its last header came from, as a balancer behind NAT changes its ports: whoever may
/// send headers is trusted with that.
#[test]
fn a_header_takes_a_live_client_over() {
    let rig = Rig::new(&["--udp-header=first"]);
    let client = someone_v4();
    rig.ask(client);
    let second = rig.another_balancer_socket();
    second.send(LISTEN_V4, &[&header_of(client), b"here now"]);
    rig.v4.expect(b"here now", client);
    rig.v4.send(client, &[b"answer"]);
    second.expect(b"answer", LISTEN_V4);
    // Its old port is its, too, and takes it back without a header.
    rig.send(&[b"back"]);
    rig.v4.expect(b"back", client);
    rig.v4.send(client, &[b"answer"]);
    rig.balancer.expect(b"answer", LISTEN_V4);
}

/// Two ports of one balancer are two clients; a port of which nothing is known is nobody.
#[test]
fn flows_are_told_apart_by_port() {
    let mut rig = Rig::new(&["--udp-header=first"]);
    let (one, other) = (someone_v4(), someone_v4());
    let second = rig.another_balancer_socket();
    let unknown = rig.another_balancer_socket();
    rig.send(&[&header_of(one), b"one"]);
    second.send(LISTEN_V4, &[&header_of(other), b"other"]);
    unknown.send(LISTEN_V4, &[b"nobody"]);
    rig.v4.expect(b"one", one);
    rig.v4.expect(b"other", other);
    rig.send(&[b"1"]);
    second.send(LISTEN_V4, &[b"2"]);
    rig.v4.expect(b"1", one);
    rig.v4.expect(b"2", other);
    assert_eq!(rig.dropped().get("no_header"), Some(&1));
}

/// A flow lives as long as it is used, and `--close-after` longer.
#[test]
fn flows_expire_unless_used() {
    let rig = Rig::new(&["--udp-header=first", "--close-after=2s"]);
    let client = someone_v4();
    rig.send(&[&header_of(client), b"0"]);
    rig.v4.expect(b"0", client);
    for _ in 0..8 {
        std::thread::sleep(Duration::from_millis(500));
        rig.send(&[b"again"]);
        rig.v4.expect(b"again", client);
    }
    std::thread::sleep(Duration::from_millis(3500));
    rig.send(&[b"too late"]);
    rig.v4.nothing();
}

/// A LOCAL header makes the flow the balancer's own.
#[test]
fn a_flow_may_be_the_balancers() {
    let rig = Rig::new(&["--udp-header=first"]);
    let local = header_bytes::raw(header_bytes::LOCAL, header_bytes::UNSPEC, &[]);
    rig.send(&[&local, b"health"]);
    let (bytes, from) = rig.v4.recv();
    assert_eq!(bytes, b"health");
    assert!(from.ip().is_loopback(), "{from}");
    rig.v4.send(from, &[b"well"]);
    rig.balancer.expect(b"well", LISTEN_V4);
}

/// The balancer's port speaks for another client when an answer to the one before comes late: it must
/// not reach the other.
#[test]
fn a_late_answer_does_not_reach_the_next_client() {
    let mut rig = Rig::new(&["--udp-header=first"]);
    let (one, next) = (someone_v4(), someone_v4());
    rig.send(&[&header_of(one), b"question"]);
    rig.v4.expect(b"question", one);
    rig.send(&[&header_of(next), b"another"]);
    rig.v4.expect(b"another", next);
    rig.v4.send(one, &[b"late"]);
    rig.v4.send(next, &[b"in time"]);
    rig.balancer.expect(b"in time", LISTEN_V4);
    assert_eq!(rig.dropped().get("flow_changed"), Some(&1));
}

/// A client that is only sent to keeps its flow.
#[test]
fn answers_keep_a_flow_alive() {
    let rig = Rig::new(&["--udp-header=first", "--close-after=2s"]);
    let client = someone_v4();
    rig.send(&[&header_of(client), b"subscribe"]);
    rig.v4.expect(b"subscribe", client);
    for _ in 0..8 {
        rig.v4.send(client, &[b"news"]);
        rig.balancer.expect(b"news", LISTEN_V4);
        std::thread::sleep(Duration::from_millis(500));
    }
    rig.send(&[b"thanks"]);
    rig.v4.expect(b"thanks", client);
}
