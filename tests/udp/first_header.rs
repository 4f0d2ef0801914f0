//! `--udp-header=first`: after one header, the balancer's address and port identify the client (a flow).

use std::time::Duration;

use crate::harness::addr::{LISTEN_V4, fresh_client_v4};
use crate::harness::header_bytes;
use crate::harness::rig::udp::{UdpRig, datagram_header_for};

/// Cloudflare Spectrum sends the header alone, ahead of the data.
#[test]
fn header_alone_is_not_forwarded() {
    let mut rig = UdpRig::new(&["--udp-header=first"]);
    let client = fresh_client_v4();
    rig.send_from_balancer(&[&datagram_header_for(client)]);
    rig.send_from_balancer(&[b"hello"]);
    rig.backend_v4.expect_datagram(b"hello", client);
    // An empty datagram of the client's is data.
    rig.send_from_balancer(&[]);
    rig.backend_v4.expect_datagram(b"", client);
    let dropped = rig.stop_and_count_drops();
    assert_eq!(
        dropped.into_iter().collect::<Vec<_>>(),
        [("header_only".to_owned(), 1)]
    );
}

/// A balancer assigns a port to another client when the one before has ended.
#[test]
fn new_header_replaces_the_client_of_a_flow() {
    let rig = UdpRig::new(&["--udp-header=first"]);
    for client in [fresh_client_v4(), fresh_client_v4()] {
        rig.send_from_balancer(&[&datagram_header_for(client), b"first"]);
        rig.backend_v4.expect_datagram(b"first", client);
        rig.send_from_balancer(&[b"second"]);
        rig.backend_v4.expect_datagram(b"second", client);
        rig.backend_v4.send(client, &[b"answer"]);
        rig.balancer.expect_datagram(b"answer", LISTEN_V4);
    }
}

/// Replies go to the balancer's address and port that last sent a header of the client: a balancer behind NAT changes
/// its port. A peer that may send headers is trusted to do that.
#[test]
fn header_moves_a_live_client_to_another_flow() {
    let rig = UdpRig::new(&["--udp-header=first"]);
    let client = fresh_client_v4();
    rig.round_trip(client);
    let second = rig.add_balancer_socket();
    second.send(LISTEN_V4, &[&datagram_header_for(client), b"here now"]);
    rig.backend_v4.expect_datagram(b"here now", client);
    rig.backend_v4.send(client, &[b"answer"]);
    second.expect_datagram(b"answer", LISTEN_V4);
    // The old port is still a flow of this client: a datagram from it, even without a header, moves the client back.
    rig.send_from_balancer(&[b"back"]);
    rig.backend_v4.expect_datagram(b"back", client);
    rig.backend_v4.send(client, &[b"answer"]);
    rig.balancer.expect_datagram(b"answer", LISTEN_V4);
}

/// Two ports of one balancer are two clients; a port without a flow has no client.
#[test]
fn flows_are_separated_by_port() {
    let mut rig = UdpRig::new(&["--udp-header=first"]);
    let (one, other) = (fresh_client_v4(), fresh_client_v4());
    let second = rig.add_balancer_socket();
    let unknown = rig.add_balancer_socket();
    rig.send_from_balancer(&[&datagram_header_for(one), b"one"]);
    second.send(LISTEN_V4, &[&datagram_header_for(other), b"other"]);
    unknown.send(LISTEN_V4, &[b"no flow"]);
    rig.backend_v4.expect_datagram(b"one", one);
    rig.backend_v4.expect_datagram(b"other", other);
    rig.send_from_balancer(&[b"1"]);
    second.send(LISTEN_V4, &[b"2"]);
    rig.backend_v4.expect_datagram(b"1", one);
    rig.backend_v4.expect_datagram(b"2", other);
    assert_eq!(rig.stop_and_count_drops().get("no_header"), Some(&1));
}

/// A flow lives as long as datagrams use it, and then for `--close-after`.
#[test]
fn idle_flow_expires() {
    let rig = UdpRig::new(&["--udp-header=first", "--close-after=2s"]);
    let client = fresh_client_v4();
    rig.send_from_balancer(&[&datagram_header_for(client), b"0"]);
    rig.backend_v4.expect_datagram(b"0", client);
    for _ in 0..8 {
        std::thread::sleep(Duration::from_millis(500));
        rig.send_from_balancer(&[b"again"]);
        rig.backend_v4.expect_datagram(b"again", client);
    }
    std::thread::sleep(Duration::from_millis(3500));
    rig.send_from_balancer(&[b"too late"]);
    rig.backend_v4.assert_silent();
}

/// A LOCAL header makes the flow the balancer's own.
#[test]
fn local_header_makes_a_flow_the_balancers() {
    let rig = UdpRig::new(&["--udp-header=first"]);
    let local = header_bytes::raw(header_bytes::LOCAL, header_bytes::UNSPEC, &[]);
    rig.send_from_balancer(&[&local, b"health"]);
    let (bytes, from) = rig.backend_v4.recv();
    assert_eq!(bytes, b"health");
    assert!(from.ip().is_loopback(), "{from}");
    rig.backend_v4.send(from, &[b"well"]);
    rig.balancer.expect_datagram(b"well", LISTEN_V4);
}

/// The balancer has assigned its port to another client when a late reply to the first one comes. The new client must
/// not get it.
#[test]
fn late_reply_does_not_reach_the_next_client() {
    let mut rig = UdpRig::new(&["--udp-header=first"]);
    let (one, next) = (fresh_client_v4(), fresh_client_v4());
    rig.send_from_balancer(&[&datagram_header_for(one), b"question"]);
    rig.backend_v4.expect_datagram(b"question", one);
    rig.send_from_balancer(&[&datagram_header_for(next), b"another"]);
    rig.backend_v4.expect_datagram(b"another", next);
    rig.backend_v4.send(one, &[b"late"]);
    rig.backend_v4.send(next, &[b"in time"]);
    rig.balancer.expect_datagram(b"in time", LISTEN_V4);
    assert_eq!(rig.stop_and_count_drops().get("flow_changed"), Some(&1));
}

/// A client that only receives keeps its flow.
#[test]
fn replies_keep_a_flow_alive() {
    let rig = UdpRig::new(&["--udp-header=first", "--close-after=2s"]);
    let client = fresh_client_v4();
    rig.send_from_balancer(&[&datagram_header_for(client), b"subscribe"]);
    rig.backend_v4.expect_datagram(b"subscribe", client);
    for _ in 0..8 {
        rig.backend_v4.send(client, &[b"news"]);
        rig.balancer.expect_datagram(b"news", LISTEN_V4);
        std::thread::sleep(Duration::from_millis(500));
    }
    rig.send_from_balancer(&[b"thanks"]);
    rig.backend_v4.expect_datagram(b"thanks", client);
}
