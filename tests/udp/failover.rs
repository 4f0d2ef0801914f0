//! Failover: when its balancer has failed, a client comes through another one. It keeps its port, and replies
//! go through the new balancer.

use std::thread;
use std::time::Duration;

use rustix::process::Signal;

use super::dialects::header_in_dialect;
use crate::harness::addr::{LISTEN_V4, fresh_client_v4, v4};
use crate::harness::datagram::DatagramSocket;
use crate::harness::lab::{Lab, Scratch};
use crate::harness::peername::Peername;
use crate::harness::rig::udp::{UdpRig, datagram_header_for};

#[test]
fn client_keeps_its_port_through_another_balancer() {
    for dialect in ["each", "spp"] {
        let mut rig = UdpRig::new(&[&format!("--udp-header={dialect}")]);
        rig.lab.balancer.add_addresses("lan", &["10.81.0.3/24"]);
        let second = DatagramSocket::bind(&rig.lab.balancer, v4([10, 81, 0, 3], 0));
        let client = fresh_client_v4();
        let header = header_in_dialect(dialect, client);
        let reply_header: &[u8] = if dialect == "spp" { &header } else { &[] };
        let assert_reply_reaches = |rig: &UdpRig, balancer: &DatagramSocket| {
            rig.backend_v4.send(client, &[b"pong"]);
            balancer.expect_datagram(&[reply_header, b"pong"].concat(), LISTEN_V4);
        };
        rig.assert_delivered(&header, b"first", client);
        assert_reply_reaches(&rig, &rig.balancer);
        // As long as the first balancer sends, the client's session there holds the client's port, so the session through the
        // second balancer gets another one.
        second.send(LISTEN_V4, &[&header, b"too soon"]);
        let (_, from) = rig.backend_v4.recv();
        assert_eq!(from.ip(), client.ip());
        assert_ne!(from.port(), client.port());
        rig.lab.balancer.add_addresses("lan", &["10.81.0.4/24"]);
        let third = DatagramSocket::bind(&rig.lab.balancer, v4([10, 81, 0, 4], 0));
        thread::sleep(UNTIL_FAILOVER);
        for _ in 0..3 {
            third.send(LISTEN_V4, &[&header, b"failover"]);
            rig.backend_v4.expect_datagram(b"failover", client);
            assert_reply_reaches(&rig, &third);
        }
        // Replies go to the balancer that sent last.
        thread::sleep(UNTIL_FAILOVER);
        rig.assert_delivered(&header, b"back", client);
        assert_reply_reaches(&rig, &rig.balancer);
        assert_eq!(rig.stop()["udp_sessions"], 2);
    }
}

/// A session keeps the policy with which it began. When another balancer takes it over, the current policy applies.
#[test]
fn failover_applies_the_current_configuration() {
    let (lab, scratch) = (Lab::new(), Scratch::new());
    let write_config = |port: u16| {
        let content = format!(
            "[[listen]]\naddress = [\"{LISTEN_V4}\"]\nprotocol = \"udp\"\ntarget-v4 = \"127.0.0.1:{port}\"\ntrust = [\"any\"]\n"
        );
        scratch.write("proxy.toml", &content)
    };
    let config = format!("--config={}", write_config(9000));
    let proxy = Peername::start_listening(&lab.server, &["proxy", "--log-format=json", &config]);
    lab.balancer.add_addresses("lan", &["10.81.0.3/24"]);
    let balancer = |last| DatagramSocket::bind(&lab.balancer, v4([10, 81, 0, last], 0));
    let backend = |port| DatagramSocket::bind(&lab.server, v4([127, 0, 0, 1], port));
    let (first, second, old, new) = (balancer(2), balancer(3), backend(9000), backend(9001));
    let client = fresh_client_v4();
    first.send(LISTEN_V4, &[&datagram_header_for(client), b"before"]);
    old.expect_datagram(b"before", client);
    write_config(9001);
    proxy.signal(Signal::HUP);
    proxy.wait_logged("\"reloaded\"");
    first.send(LISTEN_V4, &[&datagram_header_for(client), b"still"]);
    old.expect_datagram(b"still", client);
    thread::sleep(UNTIL_FAILOVER);
    second.send(LISTEN_V4, &[&datagram_header_for(client), b"after"]);
    assert_eq!(new.recv().0, b"after");
    old.assert_silent();
}

/// A balancer counts as failed when it has not sent a client's datagrams for 3 s.
const UNTIL_FAILOVER: Duration = Duration::from_millis(3200);
