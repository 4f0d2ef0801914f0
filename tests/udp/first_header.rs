//! `--udp-header=first`: after one header, the balancer's address and port identify the client (a flow).

use std::thread;
use std::time::Duration;

use super::dialects::header_in_dialect;
use crate::harness::addr::{FRONT_V4, LISTEN_V4, fresh_client_v4, v4};
use crate::harness::header_bytes::{
    self, CRC32C, DGRAM_UNIX, DGRAM_V4, NOOP, PROXY, UNSPEC, addresses, raw, tlv,
};
use crate::harness::rig::udp::{UdpRig, datagram_header_for};

/// Cloudflare Spectrum sends the header alone, ahead of the data.
#[test]
fn header_alone_is_not_forwarded() {
    let mut rig = UdpRig::new(&["--udp-header=first"]);
    let client = fresh_client_v4();
    rig.send_from_balancer(&[&datagram_header_for(client)]);
    rig.assert_delivered(&[], b"hello", client);
    // An empty datagram of the client's is data.
    rig.send_from_balancer(&[]);
    rig.backend_v4.expect_datagram(b"", client);
    let dropped = rig.stop_and_count_drops();
    assert_eq!(
        dropped.into_iter().collect::<Vec<_>>(),
        [("header_only".to_owned(), 1)]
    );
}

/// A balancer assigns its port to another client when the previous one has ended.
#[test]
fn new_header_replaces_the_client_of_a_flow() {
    let rig = UdpRig::new(&["--udp-header=first"]);
    for client in [fresh_client_v4(), fresh_client_v4()] {
        rig.assert_delivered(&datagram_header_for(client), b"first", client);
        rig.assert_delivered(&[], b"second", client);
        rig.assert_reply(client, b"answer");
    }
}

/// Replies go to the balancer's address and port that last sent a header of the client, because a balancer behind NAT changes
/// its port. A peer that may send headers is trusted to do that.
#[test]
fn header_moves_a_live_client_to_another_flow() {
    let rig = UdpRig::new(&["--udp-header=first"]);
    let client = fresh_client_v4();
    rig.round_trip(client);
    let second = rig.add_balancer_socket();
    second.round_trip(
        LISTEN_V4,
        &datagram_header_for(client),
        &rig.backend_v4,
        client,
    );
    // The old port is still a flow of this client: a datagram from it, even without a header, moves the client back.
    rig.assert_delivered(&[], b"back", client);
    rig.assert_reply(client, b"answer");
}

/// Two ports of one balancer are two clients; a port without a flow has no client.
#[test]
fn flows_are_separated_by_port() {
    let mut rig = UdpRig::new(&["--udp-header=first"]);
    let (first_client, second_client) = (fresh_client_v4(), fresh_client_v4());
    let second = rig.add_balancer_socket();
    let unknown = rig.add_balancer_socket();
    rig.send_from_balancer(&[&datagram_header_for(first_client), b"one"]);
    second.send(LISTEN_V4, &[&datagram_header_for(second_client), b"other"]);
    unknown.send(LISTEN_V4, &[b"no flow"]);
    rig.backend_v4.expect_datagram(b"one", first_client);
    rig.backend_v4.expect_datagram(b"other", second_client);
    rig.send_from_balancer(&[b"1"]);
    second.send(LISTEN_V4, &[b"2"]);
    rig.backend_v4.expect_datagram(b"1", first_client);
    rig.backend_v4.expect_datagram(b"2", second_client);
    assert_eq!(rig.stop_and_count_drops().get("no_header"), Some(&1));
}

/// For the balancer, two addresses of the server are two peers, each with a client of its own.
#[test]
fn flows_are_separated_by_the_local_address() {
    let options = ["--udp-header=first", "--listen=0.0.0.0:8444", "--workers=1"];
    let rig = UdpRig::new(&options);
    rig.lab.server.add_addresses("eth0", &["10.81.0.77/24"]);
    let flows = [[10, 81, 0, 1], [10, 81, 0, 77]].map(|ip| (v4(ip, 8444), fresh_client_v4()));
    for (to, client) in flows {
        rig.balancer
            .send(to, &[&datagram_header_for(client), b"first"]);
        rig.backend_v4.expect_datagram(b"first", client);
    }
    for (to, client) in flows {
        rig.balancer.send(to, &[b"second"]);
        rig.backend_v4.expect_datagram(b"second", client);
        rig.backend_v4.send(client, &[b"answer"]);
        rig.balancer.expect_datagram(b"answer", to);
    }
}

/// A flow lives as long as datagrams use it, and then for `--close-after`.
#[test]
fn idle_flow_expires() {
    let mut rig = UdpRig::new(&["--udp-header=first", "--close-after=2s"]);
    let client = fresh_client_v4();
    rig.assert_delivered(&datagram_header_for(client), b"0", client);
    for _ in 0..8 {
        thread::sleep(Duration::from_millis(500));
        rig.assert_delivered(&[], b"again", client);
    }
    thread::sleep(Duration::from_millis(3500));
    rig.send_from_balancer(&[b"too late"]);
    rig.backend_v4.assert_silent();
    assert_eq!(rig.stop_and_count_drops().get("no_header"), Some(&1));
}

/// nginx sends a header of version 1, which names TCP, before the first datagram. Such a header is refused with
/// `--strict-header` and in the other dialects, where the log names the option that accepts it.
#[test]
fn version_1_begins_a_flow_as_nginx_sends_it() {
    let client = fresh_client_v4();
    let header = header_bytes::v1(client, FRONT_V4);
    let rig = UdpRig::new(&["--udp-header=first"]);
    rig.round_trip(fresh_client_v4());
    rig.send_from_balancer(&[&header, b"first"]);
    rig.send_from_balancer(&[b"second"]);
    for payload in [b"first".as_slice(), b"second"] {
        rig.backend_v4.expect_datagram(payload, client);
    }
    rig.assert_reply(client, b"answer");
    for options in [
        &["--udp-header=each"][..],
        &["--udp-header=first", "--strict-header"],
    ] {
        let mut rig = UdpRig::new(options);
        rig.send_from_balancer(&[&header, b"first"]);
        rig.send_from_balancer(&[b"second"]);
        rig.proxy
            .wait_logged("as nginx does, on the first datagram of a flow: --udp-header first");
        rig.backend_v4.assert_silent();
        let dropped = rig.stop_and_count_drops();
        assert_eq!(dropped.get("v1_on_datagram"), Some(&1), "{dropped:?}");
        assert_eq!(dropped.get("no_header"), Some(&1), "{dropped:?}");
    }
}

#[test]
fn local_header_makes_a_flow_the_balancers() {
    let rig = UdpRig::new(&["--udp-header=first"]);
    let local = header_bytes::raw(header_bytes::LOCAL, header_bytes::UNSPEC, &[]);
    rig.send_from_balancer(&[&local, b"health"]);
    let (bytes, from) = rig.backend_v4.recv();
    assert_eq!(bytes, b"health");
    assert!(from.ip().is_loopback(), "{from}");
    rig.assert_reply(from, b"well");
}

/// The balancer has assigned its port to another client when a late reply to the first one comes. The new client must
/// not get it.
#[test]
fn late_reply_does_not_reach_the_next_client() {
    let mut rig = UdpRig::new(&["--udp-header=first"]);
    let (first, next) = (fresh_client_v4(), fresh_client_v4());
    rig.assert_delivered(&datagram_header_for(first), b"question", first);
    rig.assert_delivered(&datagram_header_for(next), b"another", next);
    rig.backend_v4.send(first, &[b"late"]);
    rig.assert_reply(next, b"in time");
    assert_eq!(rig.stop_and_count_drops().get("flow_changed"), Some(&1));
}

/// A client that only receives keeps its flow.
#[test]
fn replies_keep_a_flow_alive() {
    let rig = UdpRig::new(&["--udp-header=first", "--close-after=2s"]);
    let client = fresh_client_v4();
    rig.assert_delivered(&datagram_header_for(client), b"subscribe", client);
    for _ in 0..8 {
        rig.assert_reply(client, b"news");
        thread::sleep(Duration::from_millis(500));
    }
    rig.assert_delivered(&[], b"thanks", client);
}

/// A refused header ends its flow, because the datagrams that follow belong to the refused client, not to the previous one.
/// That also holds with the kernel data path, which can't carry such flows.
#[test]
fn refused_header_ends_its_flow() {
    for path in ["--data-path=userspace", "--data-path=kernel"] {
        let mut rig = UdpRig::new(&["--udp-header=first", "--max-header=300", path]);
        let (client, refused) = (fresh_client_v4(), refused_headers());
        for (what, header) in &refused {
            for _ in 0..ROUNDS_UNTIL_STEADY {
                rig.round_trip(client);
            }
            rig.send_from_balancer(&[header, b"refused"]);
            rig.send_from_balancer(&[b"of the refused client: ", what.as_bytes()]);
        }
        rig.round_trip(client);
        rig.backend_v4.assert_silent();
        let dropped = rig.stop_and_count_drops();
        let count = refused.len() as u64;
        assert_eq!(dropped.values().sum::<u64>(), 2 * count, "{dropped:?}");
    }
}

/// Replaces each byte after a header's signature by other values. Whether or not the result is a valid header, the payload
/// behind it is never taken for the previous client's.
#[test]
fn payload_behind_a_corrupted_header_is_not_the_previous_clients() {
    for dialect in ["each", "first", "spp"] {
        let option = format!("--udp-header={dialect}");
        let rig = UdpRig::new(&[&option, "--data-path=userspace"]);
        let (client, other) = (fresh_client_v4(), v4([203, 0, 113, 99], 4001));
        let valid = header_in_dialect(dialect, client);
        let (others_header, signature_len) = match dialect {
            "spp" => (header_in_dialect(dialect, other), 2),
            _ => {
                let body = [addresses(other, FRONT_V4), tlv(CRC32C, &[0; 4])].concat();
                (raw(PROXY, DGRAM_V4, &body), 12)
            }
        };
        for index in signature_len..others_header.len() {
            for value in [0x00, 0x01, 0x11, 0x20, 0x22, 0x31, 0x7f, 0xe0, 0xff] {
                let mut corrupted = others_header.clone();
                corrupted[index] = value;
                rig.send_from_balancer(&[&valid, b"before"]);
                rig.send_from_balancer(&[&corrupted, b"of the other"]);
                rig.send_from_balancer(&[b"behind the other"]);
                rig.send_from_balancer(&[&valid, b"after"]);
                let mut received = rig.backend_v4.recv();
                while received != (b"after".to_vec(), client) {
                    let is_before = received.0 == b"before";
                    assert_eq!(
                        received.1 == client,
                        is_before,
                        "{dialect} {index} {value}: {received:?}"
                    );
                    received = rig.backend_v4.recv();
                }
            }
        }
    }
}

/// A header for each reason for which the parser refuses one, and some whose source is refused.
fn refused_headers() -> Vec<(&'static str, Vec<u8>)> {
    let (client, front) = (fresh_client_v4(), FRONT_V4);
    let block = addresses(client, front);
    let header_with = |tlvs: &[u8]| raw(PROXY, DGRAM_V4, &[&block, tlvs].concat());
    let header_from = |ip| header_bytes::v2_udp(v4(ip, 4001), front);
    vec![
        ("too long", header_with(&tlv(NOOP, &[0; 300]))),
        ("65 TLVs", header_with(&tlv(NOOP, &[]).repeat(65))),
        ("a wrong checksum", header_with(&tlv(CRC32C, &[1, 2, 3, 4]))),
        ("a TLV that overruns", header_with(&[NOOP, 0xff, 0xff])),
        ("for TCP", header_bytes::v2(client, front, &[])),
        ("cut off", header_with(&[])[..20].to_vec()),
        ("too short for its family", raw(PROXY, DGRAM_V4, &[0; 4])),
        ("version 3", raw(0x31, DGRAM_V4, &block)),
        ("command 2", raw(0x22, DGRAM_V4, &block)),
        ("family 4", raw(PROXY, 0x42, &block)),
        ("AF_UNIX", raw(PROXY, DGRAM_UNIX, &[b'x'; 216])),
        ("AF_UNSPEC", raw(PROXY, UNSPEC, &block)),
        ("version 1, cut off", b"PROXY TCP4 203.0.113.9 ".to_vec()),
        (
            "version 1, not an address",
            b"PROXY TCP4 203.0.113.300 203.0.113.1 4001 80\r\n".to_vec(),
        ),
        (
            "version 1, a loopback source",
            header_bytes::v1(v4([127, 0, 0, 1], 4001), front),
        ),
        ("a loopback source", header_from([127, 0, 0, 1])),
        ("an unspecified source", header_from([0, 0, 0, 0])),
    ]
}

/// Enough requests and replies that a session would be offloaded to the kernel.
const ROUNDS_UNTIL_STEADY: usize = 40;
