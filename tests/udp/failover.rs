//! A client whose balancer has failed comes through another one: it keeps its own port, and answers go the new way.

use std::thread;
use std::time::Duration;

use super::rig::{Rig, header_of};
use crate::addr::{LISTEN_V4, someone_v4, v4};
use crate::datagram::Datagrams;
use crate::header;

#[test]
fn a_client_keeps_its_port_through_another_balancer() {
    for dialect in ["each", "spp"] {
        let mut rig = Rig::new(&[&format!("--udp-header={dialect}")]);
        rig.lab.balancer.address("lan", &["10.81.0.3/24"]);
        let second = Datagrams::bind(&rig.lab.balancer, v4([10, 81, 0, 3], 0));
        let client = someone_v4();
        let proxy = v4([203, 0, 113, 1], 80);
        let (header, reply) = match dialect {
            "spp" => (header::spp(client, proxy), header::spp(client, proxy)),
            _ => (header_of(client), Vec::new()),
        };
        let answered = |rig: &Rig, balancer: &Datagrams| {
            rig.v4.send(client, &[b"pong"]);
            balancer.expect(&[&reply[..], b"pong"].concat(), LISTEN_V4);
        };
        rig.send(&[&header, b"first"]);
        rig.v4.expect(b"first", client);
        answered(&rig, &rig.balancer);
        // As long as the first is heard, both have the client, and the second cannot have its port.
        second.send(LISTEN_V4, &[&header, b"too soon"]);
        let (_, beside) = rig.v4.recv();
        assert!(
            beside.ip() == client.ip() && beside.port() != client.port(),
            "{beside}"
        );
        rig.lab.balancer.address("lan", &["10.81.0.4/24"]);
        let third = Datagrams::bind(&rig.lab.balancer, v4([10, 81, 0, 4], 0));
        thread::sleep(Duration::from_millis(3200));
        for _ in 0..3 {
            third.send(LISTEN_V4, &[&header, b"failover"]);
            rig.v4.expect(b"failover", client);
            answered(&rig, &third);
        }
        // What the server says by itself goes where the client was heard last.
        thread::sleep(Duration::from_millis(3200));
        rig.send(&[&header, b"back"]);
        rig.v4.expect(b"back", client);
        answered(&rig, &rig.balancer);
        assert_eq!(rig.stopped()["udp_sessions"], 2);
    }
}
