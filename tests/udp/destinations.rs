//! The destination in the header of a datagram.

use crate::harness::addr::{LISTEN_V4, addr, fresh_client_v4};
use crate::harness::datagram::DatagramSocket;
use crate::harness::header_bytes::{DGRAM_V4, LOCAL, raw, v2_udp};
use crate::harness::peername::words;
use crate::harness::rig::udp::UdpRig;

/// A second destination of a client gets a session of its own. go-mmproxy sends everything to the first one.
#[test]
fn client_with_two_destinations_has_two_sessions() {
    let rig = UdpRig::new(&[
        "--dynamic-destination",
        "--allow-destination=127.0.0.1:9101-9102",
    ]);
    let client = fresh_client_v4();
    let destinations = ["127.0.0.1:9101", "127.0.0.1:9102"].map(addr);
    let backends = destinations.map(|at| DatagramSocket::bind(&rig.lab.server, at));
    for round in [b"one", b"two"] {
        for (backend, destination) in backends.iter().zip(destinations) {
            rig.send_from_balancer(&[&v2_udp(client, destination), round]);
            let (bytes, from) = backend.recv();
            assert_eq!(
                (&bytes[..], from.ip()),
                (&round[..], client.ip()),
                "{destination}"
            );
            backend.send(from, &[b"back ", round]);
            rig.balancer
                .expect_datagram(&[b"back ", &round[..]].concat(), LISTEN_V4);
        }
    }
    rig.send_from_balancer(&[&raw(LOCAL, DGRAM_V4, &[]), b"health"]);
    assert_eq!(rig.backend_v4.recv().0, b"health");
}

#[test]
fn destinations_are_refused_as_over_tcp() {
    let mut rig = UdpRig::new(&words(
        "--dynamic-destination --allow-destination=0.0.0.0/0 \
         --allow-destination=127.0.0.1:9000 --workers=1",
    ));
    for (times, destination) in [
        (1, "127.0.0.1:9001"),
        (2, "10.81.0.1:8443"),
        (3, "224.0.0.1:53"),
    ] {
        for _ in 0..times {
            rig.send_from_balancer(&[&v2_udp(fresh_client_v4(), addr(destination)), b"x"]);
        }
    }
    let client = fresh_client_v4();
    rig.assert_delivered(&v2_udp(client, addr("127.0.0.1:9000")), b"the last", client);
    let dropped = rig.stop_and_count_drops();
    assert_eq!(dropped["destination_loopback"], 1, "{dropped:?}");
    assert_eq!(dropped["destination_own_listener"], 2, "{dropped:?}");
    assert_eq!(dropped["destination_multicast"], 3, "{dropped:?}");
    rig.backend_v4.assert_silent();
}
