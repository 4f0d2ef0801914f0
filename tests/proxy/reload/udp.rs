//! Reload of UDP listeners: sessions go on by what they began with.

use std::net::{SocketAddr, UdpSocket};
use std::thread;
use std::time::Duration;

use super::{PRIVILEGED, ReloadRig, table};
use crate::harness::addr::{BALANCER_V4, LISTEN_V4, TARGET_V4, fresh_client_v4, v4};
use crate::harness::datagram::DatagramSocket;
use crate::harness::header_bytes;
use crate::harness::lab::wait_for;
use crate::harness::rig::proxy::front_of;

/// A reload adds and removes UDP listeners as a whole; sessions of those that stay are not affected, but a
/// peer that is no longer trusted is not heard.
#[test]
fn reload_changes_udp_listeners_and_trust() {
    let both = "protocol = \"both\"\n";
    let one = table(LISTEN_V4, &["10.81.0.0/24"]) + both;
    let more = format!("{one}{}{both}", table(PRIVILEGED, &["10.81.0.0/24"]));
    let rig = ReloadRig::new(&one);
    let backend = DatagramSocket::bind(&rig.lab.server, TARGET_V4);
    let balancer = DatagramSocket::bind(&rig.lab.balancer, SocketAddr::new(BALANCER_V4, 0));
    let client = fresh_client_v4();
    let ask = |listen, text: &[u8]| {
        balancer.send(
            listen,
            &[&header_bytes::v2_udp(client, front_of(client)), text],
        );
    };
    let answered = |listen, text: &[u8]| {
        ask(listen, text);
        backend.expect_datagram(text, client);
        backend.send(client, &[b"!"]);
        balancer.expect_datagram(b"!", listen);
    };
    answered(LISTEN_V4, b"1");
    rig.reload(&more, "\"reloaded\"");
    answered(LISTEN_V4, b"2");
    let changed = more.replace("protocol", "udp-header = \"spp\"\nprotocol");
    rig.reload(&changed, "can't change without a restart");
    // It would have limits of its own, and be refused at each upgrade.
    let wider = one.replace("8443\"]", "8443\", \"10.81.0.1:8109\"]");
    rig.reload(&wider, "further addresses need a table of their own");
    rig.reload(&one, "\"reloaded\"");
    answered(LISTEN_V4, b"3");
    rig.reload(&one.replace("10.81.0.0/24", "192.0.2.0/24"), "\"reloaded\"");
    ask(LISTEN_V4, b"unheard");
    rig.proxy.wait_logged("datagrams refused: untrusted_peer");
    rig.reload(&one, "\"reloaded\"");
    answered(LISTEN_V4, b"4");
    let totals = rig.stop();
    assert_eq!(totals["udp_sessions"], 1, "{totals}");
    assert_eq!(totals["datagrams_dropped"], "untrusted_peer=1", "{totals}");
}

/// A removed listener that still serves its sessions is not confused with a later one at its address.
#[test]
fn later_listener_at_the_same_address_has_its_own_sessions() {
    let udp = |port| table(udp_at(port), &["10.81.0.0/24"]) + "protocol = \"udp\"\n";
    let one = table(LISTEN_V4, &["10.81.0.0/24"]);
    let rig = ReloadRig::new(&(one.clone() + &udp(8101)));
    let backend = DatagramSocket::bind(&rig.lab.server, TARGET_V4);
    let balancer = DatagramSocket::bind(&rig.lab.balancer, SocketAddr::new(BALANCER_V4, 0));
    let client = fresh_client_v4();
    let ask = |text: &[u8]| {
        let header = header_bytes::v2_udp(client, front_of(client));
        balancer.send(udp_at(8101), &[&header, text]);
    };
    ask(b"before");
    backend.expect_datagram(b"before", client);
    for port in [8102, 8103] {
        rig.reload(&one, "\"reloaded\"");
        // A session with traffic goes on for a moment.
        backend.send(client, &[b"media"]);
        let another = udp(port).replace(&TARGET_V4.to_string(), "127.0.0.1:9");
        rig.reload(&(one.clone() + &another), "\"reloaded\"");
        backend.send(client, &[b"media"]);
        ask(b"after");
        backend.expect_datagram(b"after", client);
    }
}

/// Sessions are not affected when a reload removes their listener; no new session begins; and the port is
/// free once they are idle.
#[test]
fn open_udp_sessions_outlive_their_listener() {
    let one = table(LISTEN_V4, &["10.81.0.0/24"]);
    let more = one.clone() + &table(udp_at(8101), &["10.81.0.0/24"]) + "protocol = \"udp\"\n";
    let rig = ReloadRig::new(&more);
    let backend = DatagramSocket::bind(&rig.lab.server, TARGET_V4);
    let balancer = DatagramSocket::bind(&rig.lab.balancer, SocketAddr::new(BALANCER_V4, 0));
    let ask = |client, text: &[u8]| {
        let header = header_bytes::v2_udp(client, front_of(client));
        balancer.send(udp_at(8101), &[&header, text]);
    };
    let client = fresh_client_v4();
    let answered = |text: &[u8]| {
        ask(client, text);
        backend.expect_datagram(text, client);
        backend.send(client, &[b"!"]);
        balancer.expect_datagram(b"!", udp_at(8101));
    };
    answered(b"1");
    rig.reload(&one, "\"reloaded\"");
    for _ in 0..20 {
        answered(b"2");
        thread::sleep(Duration::from_millis(100));
    }
    ask(v4([198, 51, 100, 8], 4000), b"new");
    backend.assert_silent();
    answered(b"2");
    rig.reload(&more, "still drains its sessions");
    let bind = || UdpSocket::bind(udp_at(8101)).ok();
    wait_for("the port is free", || rig.lab.server.enter(bind));
    rig.reload(&more, "\"reloaded\"");
    answered(b"3");
}

const fn udp_at(port: u16) -> SocketAddr {
    v4([10, 81, 0, 1], port)
}
