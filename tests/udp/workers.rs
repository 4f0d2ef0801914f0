//! Several workers: a client stays with one of them, whatever the balancer does.

use std::net::SocketAddr;

use super::dialects::header_in_dialect;
use crate::harness::addr::{BALANCER_V6, LISTEN_V4, LISTEN_V6, fresh_client_v4, fresh_client_v6};
use crate::harness::datagram::DatagramSocket;
use crate::harness::rig::udp::{UdpRig, datagram_header_for};

/// If the kernel steered by the balancer's port, one client's datagrams would come to several workers, and
/// all but the first would have to use another port.
#[test]
fn client_stays_with_its_worker() {
    for dialect in ["each", "spp"] {
        let mut rig = UdpRig::new(&["--workers=8", &format!("--udp-header={dialect}")]);
        let clients: Vec<SocketAddr> = (0..20)
            .map(|_| fresh_client_v4())
            .chain((0..20).map(|_| fresh_client_v6()))
            .collect();
        for round in 0..10_u8 {
            let balancer = rig.add_balancer_socket();
            for client in &clients {
                let header = header_in_dialect(dialect, *client);
                balancer.send(LISTEN_V4, &[&header, &[round]]);
                rig.backend(*client).expect_datagram(&[round], *client);
            }
        }
        let counters = rig.stop();
        assert_eq!(counters["port_collisions"], 0, "{dialect}: {counters}");
        assert_eq!(counters["udp_sessions"], 40, "{dialect}: {counters}");
    }
}

/// Every worker has sessions of some of the clients.
#[test]
fn clients_are_spread_over_the_workers() {
    for dialect in ["each", "spp"] {
        let rig = UdpRig::new(&[
            "--workers=4",
            "--max-sessions=4",
            &format!("--udp-header={dialect}"),
        ]);
        // Each worker may have one session, so four sessions remain of 100 clients if every worker has some.
        for client in (0..50)
            .map(|_| fresh_client_v4())
            .chain((0..50).map(|_| fresh_client_v6()))
        {
            let header = header_in_dialect(dialect, client);
            rig.send_from_balancer(&[&header, b"?"]);
            rig.backend(client).expect_datagram(b"?", client);
        }
        let count_sessions = |table: &str| {
            let path = format!("/proc/{}/net/{table}", rig.proxy.pid());
            let sockets = std::fs::read_to_string(path).expect("the table");
            // Connected (state 01) to port 9000, in hexadecimal.
            let is_session = |line: &&str| line.contains(":2328 01 ");
            sockets.lines().filter(is_session).count()
        };
        assert_eq!(
            count_sessions("udp") + count_sessions("udp6"),
            4,
            "{dialect}"
        );
    }
}

/// A client whose headers come to listeners of both families is steered to one worker. There its second session collides with
/// the first, and gets another port.
#[test]
fn client_has_the_same_worker_at_every_listener() {
    let mut rig = UdpRig::new(&["--workers=8"]);
    let v6 = DatagramSocket::bind(&rig.lab.balancer, SocketAddr::new(BALANCER_V6, 0));
    for _ in 0..20 {
        let client = fresh_client_v4();
        rig.round_trip(client);
        v6.send(LISTEN_V6, &[&datagram_header_for(client), b"6"]);
        let (bytes, from) = rig.backend_v4.recv();
        assert_eq!((&bytes[..], from.ip()), (&b"6"[..], client.ip()));
        rig.backend_v4.send(from, &[b"to 6"]);
        v6.expect_datagram(b"to 6", LISTEN_V6);
        rig.round_trip(client);
    }
    assert_eq!(rig.stop()["port_collisions"], 20);
}
